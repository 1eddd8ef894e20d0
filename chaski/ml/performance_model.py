"""A model of the time that a plan takes on any number of threads.

A run on one thread, whose work is cut into pieces as for several threads, shows the cost of each piece. The
model assigns the pieces as the plan does, in order, to the next free thread. At the end of a phase all
threads wait for the last one. On several threads a piece takes longer than on one, by three rules:

* The time that one thread needs to read its bytes grows as the bandwidth per thread shrinks. Reading overlaps
  with computing no more than on one thread.
* Activations that another core touched last come from that core's cache. Of n threads, this is a share of
  1 - 1/n.
* The remaining time grows as the multiply-adds per thread shrink, as they do if threads share a core.

If there are more threads than processors, only as many threads as processors compute at a time. Each batch
also waits for threads that have no core when it begins or ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field, structs

from chaski.ml.trace import Column, TracedRun, TracedStep

__all__ = ["Batch", "Machine", "Memory", "Path", "Prediction", "ThreadRates", "predict"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class ThreadRates(Struct, frozen=True):
    """Rates of a number of threads together, and the time lost between pieces and between phases."""

    bandwidth: float
    """Bytes of weights per second, read from memory or a cache."""
    speed: float
    """Multiply-adds per second, relative to one thread."""
    claim: float
    """Seconds from the end of a piece to the beginning of the next one of the same phase."""
    barrier: float
    """Seconds from the end of the last piece of a phase to the beginning of the next phase."""


class Memory(Struct, frozen=True):
    """An assumption about memory for more threads than the machine has.

    `node_bandwidth`: the maximum bytes per second of each memory node; None if every thread adds the average
    bandwidth of the measured threads. `nodes`: the number of nodes over which weights and threads are spread.
    """

    node_bandwidth: float | None = None
    nodes: int = 1


class Machine(Struct, frozen=True):
    """Measured rates by number of threads, including one thread and all processors.

    `transfer`: seconds per byte that a thread takes from another core's cache. `crowded`: additional seconds
    per batch, by numbers of threads that are larger than the number of processors.
    """

    processors: int
    rates: Mapping[int, ThreadRates]
    transfer: float
    crowded: Mapping[int, float] = field(default_factory=dict)

    def at(self, threads: int, memory: Memory) -> ThreadRates:
        """Return the rates of any number of threads: interpolated, or extrapolated under assumptions.

        Above the measured numbers, each thread multiplies as fast as the measured ones. A barrier grows with
        each thread as it did from two to all threads. If only two were measured, it grows by a third of what
        the second added: a cache line moves three times, with the count, its last value, and the next claim.
        """
        known = sorted(self.rates)
        columns = np.array([self._row(count) for count in known])
        most = known[-1]
        if threads <= most:
            return ThreadRates(*(float(np.interp(threads, known, column)) for column in columns.T))
        one, last = self.rates[1], self.rates[most]
        bandwidth = last.bandwidth * threads / most
        if memory.node_bandwidth is not None:
            bandwidth = min(bandwidth, memory.nodes * memory.node_bandwidth)
        if most > 2:
            growth = (last.barrier - self.rates[2].barrier) / (most - 2)
        else:
            growth = (last.barrier - one.barrier) / 3
        barrier = last.barrier + max(growth, 0.0) * (threads - most)
        return ThreadRates(bandwidth, last.speed * threads / most, last.claim, barrier)

    def better_of(self, other: Machine) -> Machine:
        """Return the better rates of two measurements of one machine, since disturbances make rates worse."""
        rates = {
            count: ThreadRates(
                max(one.bandwidth, other.rates[count].bandwidth),
                max(one.speed, other.rates[count].speed),
                min(one.claim, other.rates[count].claim),
                min(one.barrier, other.rates[count].barrier),
            )
            for count, one in self.rates.items()
        }
        crowded = {count: min(seconds, other.crowded[count]) for count, seconds in self.crowded.items()}
        return Machine(self.processors, rates, (self.transfer + other.transfer) / 2, crowded)

    def between(self, other: Machine) -> Machine:
        """Return the better rates of two measurements, but the mean of their bandwidths.

        Disturbances of the other rates are short. The bandwidth of a virtual machine, however, changes for
        seconds, and affects runs between the measurements.
        """
        better = self.better_of(other)
        rates = {
            count: structs.replace(
                found, bandwidth=(self.rates[count].bandwidth + other.rates[count].bandwidth) / 2
            )
            for count, found in better.rates.items()
        }
        return structs.replace(better, rates=rates)

    def _row(self, threads: int) -> tuple[float, ...]:
        found = self.rates[threads]
        return found.bandwidth, found.speed, found.claim, found.barrier


class Batch(Struct, frozen=True, eq=False):
    """A batch on one thread: the mean seconds of each piece, over the middle third of the runs by duration.

    `steps[i]`, `phases[i]` and `items[i]` (the share of the step's items) belong to piece i. `before`: the
    seconds in which other threads compute before the caller joins. `after`: the seconds in which all threads
    wait for the caller.
    """

    plan: Sequence[TracedStep]
    sizes: Mapping[str, int]
    steps: I64
    phases: I64
    items: F64
    seconds: F64
    before: float
    after: float

    @classmethod
    def of(cls, runs: Sequence[TracedRun], after: float = 0.0) -> Batch:
        """Make a batch of the runs on one thread that were cut like the last run."""
        last = runs[-1].pieces
        where = [Column.THREAD, Column.STEP, Column.PHASE, Column.BEGIN, Column.END]
        if (last[:, Column.THREAD] > 0).any():
            raise ValueError("runs of one thread are needed")
        alike = [
            run
            for run in runs
            if len(run.pieces) == len(last) and (run.pieces[:, where] == last[:, where]).all()
        ]
        times = np.array([run.pieces[:, Column.ENDED] - run.pieces[:, Column.STARTED] for run in alike])
        # The medians of single pieces would add up to less than the median of whole runs.
        shortest, longest = len(alike) // 3, len(alike) - len(alike) // 3
        middling = np.argsort(times.sum(axis=1))[shortest:longest]
        steps = last[:, Column.STEP]
        counts = last[:, Column.END] - last[:, Column.BEGIN]
        totals = np.bincount(steps, counts, len(runs[-1].steps))
        return cls(
            plan=runs[-1].steps,
            sizes=runs[-1].sizes,
            steps=steps,
            phases=last[:, Column.PHASE],
            items=counts / totals[steps],
            seconds=times[middling].mean(axis=0) * 1e-9,
            before=float(np.median([run.joined - run.launched for run in alike])) * 1e-9,
            after=after,
        )

    def bytes_read(self) -> F64:
        """Bytes of weights, keys and values that each piece reads."""
        return self._of_pieces([step.bytes_read(self.sizes) for step in self.plan])

    def divided_bytes(self) -> F64:
        """Bytes of activations that belong to each piece."""
        return self._of_pieces([step.divided_bytes * self._rows(step) for step in self.plan])

    def shared_bytes(self) -> F64:
        """Bytes of activations that every thread reads, for the step of each piece."""
        return np.array([step.shared_bytes * self._rows(step) for step in self.plan], float)[self.steps]

    def _of_pieces(self, of_steps: Sequence[float]) -> F64:
        return np.array(of_steps, float)[self.steps] * self.items

    def _rows(self, step: TracedStep) -> int:
        return 0 if step.rows is None else self.sizes[step.rows]


class Path(Struct, frozen=True, eq=False):
    """The critical path: in each phase, the pieces of the thread that finishes last.

    `on_path[i]` is True if piece i lies on the path. `waiting`: the remaining seconds, which are claims,
    barriers, and waiting for the caller while it alone computes.
    """

    on_path: npt.NDArray[np.bool_]
    waiting: float


class Prediction(Struct, frozen=True, eq=False):
    """A batch on `threads` threads; `lanes[i]` computes piece i from `started[i]` to `ended[i]`, seconds.

    `computing`, `reading` and `transferring` are the parts of each piece's time.
    """

    threads: int
    seconds: float
    batch: Batch
    lanes: I64
    started: F64
    ended: F64
    computing: F64
    reading: F64
    transferring: F64
    path: Path


def predict(
    batch: Batch, machine: Machine, threads: int, processors: int | None = None, memory: Memory | None = None
) -> Prediction:
    """Predict a batch that is cut for `threads` threads.

    `processors`: the number of processors of the machine; one per thread by default. Raises KeyError if there
    are more threads than processors and the machine was not measured with that number of threads.
    """
    workers = min(threads, processors or threads)
    memory = memory or Memory()
    computing, reading, transferring, shared = _costs(batch, machine, workers, memory)
    rates = machine.at(workers, memory)
    lanes = np.zeros(len(batch.steps), np.int64)
    started, ended = np.zeros(len(lanes)), np.zeros(len(lanes))
    on_path = np.zeros(len(lanes), bool)
    durations = computing + reading + transferring
    caller = batch.before
    clock = caller if workers == 1 else 0.0
    alone = clock
    index = 0
    for _, group in groupby(batch.phases.tolist()):
        end = index + len(list(group))
        free = [(max(clock, caller) if lane == 0 else clock, lane) for lane in range(workers)]
        heapq.heapify(free)
        begun: set[tuple[int, int]] = set()
        for piece in range(index, end):
            at, lane = heapq.heappop(free)
            step = int(batch.steps[piece])
            if (lane, step) not in begun:
                begun.add((lane, step))
                transferring[piece] += shared[piece]
                durations[piece] += shared[piece]
            lanes[piece], started[piece], ended[piece] = lane, at, at + durations[piece]
            heapq.heappush(free, (ended[piece] + rates.claim, lane))
        last = index + int(ended[index:end].argmax())
        on_path[index:end] = lanes[index:end] == lanes[last]
        clock = ended[last] + rates.barrier
        index = end
    if workers < threads:
        clock += machine.crowded[threads]
    seconds = clock + batch.after
    path = Path(on_path, clock - float(durations[on_path].sum()) - alone)
    return Prediction(threads, seconds, batch, lanes, started, ended, computing, reading, transferring, path)


def _costs(batch: Batch, machine: Machine, workers: int, memory: Memory) -> tuple[F64, F64, F64, F64]:
    """Return the seconds of each piece: computing, reading, transferring, and transferring per thread."""
    one, rates = machine.rates[1], machine.at(workers, memory)
    reading = np.minimum(batch.bytes_read() / one.bandwidth, batch.seconds)
    computing = (batch.seconds - reading) * (workers / rates.speed)
    # The number of threads that read at the same time is at most the number of pieces.
    count = int(batch.phases.max()) + 1 if len(batch.phases) else 0
    active = np.minimum(np.bincount(batch.phases, minlength=count), workers)
    slower = np.array(
        [a * one.bandwidth / machine.at(a, memory).bandwidth if a else 1.0 for a in range(workers + 1)]
    )
    reading = reading * slower[active[batch.phases]]
    away = machine.transfer * (1 - 1 / workers)
    return computing, reading, batch.divided_bytes() * away, batch.shared_bytes() * away
