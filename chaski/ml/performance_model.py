"""A model of the time that a plan takes on any number of threads.

A run on one thread, whose work is cut into pieces as for several threads, shows what each piece
costs. The model hands the pieces out as the plan does, in order, to whichever thread is free; all wait for
the last one at the end of a phase. On several threads a piece takes longer than on one by three rules:

* The part of its time in which its bytes could be read at one thread's bandwidth grows as the bandwidth of
  each thread shrinks. It overlaps with computing no more than on one thread.
* Activations that another core has touched last come from its cache. Of n threads, a share of 1 - 1/n has.
* All else grows as the multiply-adds of each thread shrink, as they do where threads share a core.

Where there are more threads than processors, as many as there are processors compute at a time, and each
batch waits besides for threads that have no core when it begins or ends.
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
    """Rates of a number of threads together, and what they lose between two pieces and two phases."""

    bandwidth: float
    """Bytes per second that are read from where the weights are."""
    speed: float
    """Multiply-adds per second, in those of one thread."""
    claim: float
    """Seconds from the end of a piece to the beginning of the next one of the same phase."""
    barrier: float
    """Seconds from the end of the last piece of a phase to the beginning of the next phase."""


class Memory(Struct, frozen=True):
    """An assumption for more threads than the machine has.

    `node_bandwidth`: bytes per second that each memory node gives at most; None if every thread adds what the
    measured ones have on average. `nodes`: over which weights and threads are spread evenly.
    """

    node_bandwidth: float | None = None
    nodes: int = 1


class Machine(Struct, frozen=True):
    """Measured rates by number of threads, one and all processors among them.

    `transfer` is the seconds in which a thread takes a byte from the cache of another core. `crowded` is the
    seconds that a batch takes longer on a number of threads that is larger than that of processors.
    """

    processors: int
    rates: Mapping[int, ThreadRates]
    transfer: float
    crowded: Mapping[int, float] = field(default_factory=dict)

    def at(self, threads: int, memory: Memory) -> ThreadRates:
        """Return the rates of any number: between measured ones in proportion, beyond them as assumed.

        Beyond them each thread multiplies as fast as the measured ones do. A barrier grows with each thread
        as it did from two to all of them. Where there are two, it grows by a third of what the second one
        added: a cache line that comes three times, with the count, with its last value, with the next claim.
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
        """Return the better of two measurements of one machine: what disturbs one makes its rates worse."""
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
        """Return the machine between two measurements: the better rates of both, but the mean of bandwidths.

        A disturbance makes all other rates worse for a moment; the bandwidth of a virtual machine changes
        for seconds, and runs between the measurements met it as it was.
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
    """A batch as one thread computes it: the mean of each piece over runs of middling length, in seconds.

    `steps[i]`, `phases[i]` and `items[i]`, the share of the step's items, are those of piece i. While the
    caller is busy `before` it joins, other threads compute already; all wait while it is busy `after`.
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
        """Take the runs that were cut as the last one was, on one thread."""
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
        # The medians of single pieces would add up to less than the median of all.
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
    """The critical path: in each phase, the pieces of the thread that is done last.

    `on_path[i]` says whether piece i is one of them; `waiting` is the rest of the time, in seconds: claims,
    barriers, and the wait for the caller where it alone computes.
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
    """Predict a batch, which is cut for that many threads.

    `processors`: of the machine that computes; one for each thread by default. Raises KeyError where there
    are more threads than that, and the machine was not measured with that many.
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
    """Seconds of each piece: computing, reading, transferring, and transferring once for each thread."""
    one, rates = machine.rates[1], machine.at(workers, memory)
    reading = np.minimum(batch.bytes_read() / one.bandwidth, batch.seconds)
    computing = (batch.seconds - reading) * (workers / rates.speed)
    # Only as many threads read at a time as there are pieces.
    count = int(batch.phases.max()) + 1 if len(batch.phases) else 0
    active = np.minimum(np.bincount(batch.phases, minlength=count), workers)
    slower = np.array(
        [a * one.bandwidth / machine.at(a, memory).bandwidth if a else 1.0 for a in range(workers + 1)]
    )
    reading = reading * slower[active[batch.phases]]
    away = machine.transfer * (1 - 1 / workers)
    return computing, reading, batch.divided_bytes() * away, batch.shared_bytes() * away
