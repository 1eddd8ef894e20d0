"""Measurement of the properties of this machine that the scaling model needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from chaski import _native
from chaski.ml.performance_model import Machine, ThreadRates
from chaski.ml.trace import Column

__all__ = ["measure_machine", "measure_reading", "reading_rate", "waiting_times"]

I64 = npt.NDArray[np.int64]

# The fewest and the most bytes that are read to measure the bandwidth. A model smaller than the maximum is
# measured at its own size, so the bytes come from memory or a cache just as they do when it computes.
_LEAST, _MOST = 1 << 20, 512 << 20

# Each measurement is the best of this many repetitions.
_TURNS = 3

# Rows that each phase of a plan copies: few enough for the innermost caches of one core.
_ROWS, _WIDTH, _PHASES, _RUNS = 128, 512, 200, 20

# Seconds that a caller takes to choose a token.
_PAUSE = 4e-4


def measure_machine(
    processors: int, weight_bytes: int, isa: str = "auto", crowds: Sequence[int] = ()
) -> Machine:
    """Measure 1, 2, 4, … and `processors` threads, and `crowds`, in some tenths of a second each.

    `weight_bytes`: the size of a model, which may fit in a cache. Other running programs affect the result.
    Raises ValueError if this build or this machine lacks the instruction set.
    """
    isa = _native.isa_names()[-1] if isa == "auto" else isa
    counts = sorted({processors, *(1 << i for i in range(processors.bit_length()))})
    size = min(max(weight_bytes, _LEAST), _MOST)
    pools = {count: _native.ThreadPool(count) for count in counts}
    bandwidths, speeds = dict.fromkeys(counts, 0.0), dict.fromkeys(counts, 0.0)
    for _ in range(_TURNS):
        for count, pool in pools.items():
            bandwidths[count] = max(bandwidths[count], _native.read_bandwidth(pool, isa, size))
            speeds[count] = max(speeds[count], _native.multiply_add_rate(pool, isa, "int8") or 0.0)
    rates = {}
    for count, pool in pools.items():
        # More threads never give one thread more bandwidth.
        bandwidth = min(bandwidths[count], count * bandwidths[1])
        speed = min(speeds[count] / speeds[1], float(count))
        rates[count] = ThreadRates(bandwidth, speed, *waiting_times(pool, isa))
    transfer = _transfer(processors, isa) if processors > 1 else 0.0
    alone = _batch(processors, isa) if crowds else 0.0
    return Machine(processors, rates, transfer, {n: max(_batch(n, isa) - alone, 0.0) for n in crowds})


@cache
def reading_rate(threads: int, isa: str = "auto") -> float:
    """Return the memory bandwidth of `threads` threads in bytes per second, which the first call measures.

    Raises ValueError if this build or this machine lacks the instruction set.
    """
    return measure_reading(threads, isa)


def measure_reading(threads: int, isa: str = "auto") -> float:
    """Measure the memory bandwidth of `threads` threads in bytes per second, in some tenths of a second.

    Raises ValueError if this build or this machine lacks the instruction set.
    """
    isa = _native.isa_names()[-1] if isa == "auto" else isa
    pool = _native.ThreadPool(threads)
    return max(_native.read_bandwidth(pool, isa, _MOST // 2) for _ in range(_TURNS))


def waiting_times(pool: _native.ThreadPool, isa: str) -> tuple[float, float]:
    """Return the seconds between pieces of a phase, and between phases, when all threads take part."""
    gaps = [_gaps(pieces) for pieces in _copies(pool, isa, pool.threads)]
    claims, barriers = (np.concatenate(column) for column in zip(*gaps, strict=True))
    return float(np.median(claims)) * 1e-9, float(np.median(barriers)) * 1e-9


def _batch(threads: int, isa: str) -> float:
    """Return the seconds from launch to end of a plan, with pauses between launches as between tokens."""
    plan = _plan(_native.ThreadPool(threads), isa, threads)
    seconds = []
    for _ in range(3 * _RUNS):
        began = time.perf_counter()
        plan.launch([_ROWS])
        plan.wait()
        seconds.append(time.perf_counter() - began)
        time.sleep(_PAUSE)
    return median(seconds)


def _copies(pool: _native.ThreadPool, isa: str, cut_for: int) -> Sequence[I64]:
    """Return the pieces of the runs of `_plan` in which threads shared the work most evenly.

    In other runs a thread lost its core or slept, and the others did its work without waiting for it.
    """
    plan = _plan(pool, isa, cut_for)
    plan.trace()
    found = []
    for _ in range(_RUNS):
        plan.launch([_ROWS])
        plan.wait()
        found.append(plan.pieces())

    def least_share(pieces: I64) -> int:
        return int(np.bincount(pieces[:, Column.THREAD], minlength=pool.threads).min())

    return sorted(found, key=least_share)[_RUNS // 2 :]


def _plan(pool: _native.ThreadPool, isa: str, cut_for: int) -> _native.Plan:
    """Make a plan that copies rows back and forth in reverse order: threads read each other's rows."""
    picks = _native.VariantPicks(isa)
    picks.settle()
    size = 4 * _ROWS * _WIDTH
    arena = 2 * size + 4 * _ROWS
    plan = _native.Plan(pool, isa, picks, arena, ["rows"], [_ROWS], False, cut_for)
    here, there = 0, size
    for phase in range(_PHASES):
        if phase > 0:
            plan.barrier()
        plan.rows(dim=0, source_dim=0, width=_WIDTH, x=here, indices=2 * size, y=there)
        here, there = there, here
    plan.finish()
    plan.floats(0, _ROWS, _WIDTH)[:] = 1.0
    plan.ints(2 * size, _ROWS)[:] = np.arange(_ROWS)[::-1]
    return plan


def _gaps(pieces: I64) -> tuple[I64, I64]:
    """Return the nanoseconds between a thread's pieces in a phase, and between phases."""
    same = (pieces[1:, [Column.THREAD, Column.PHASE]] == pieces[:-1, [Column.THREAD, Column.PHASE]]).all(1)
    claims = (pieces[1:, Column.STARTED] - pieces[:-1, Column.ENDED])[same]
    ended = np.zeros(_PHASES, np.int64)
    np.maximum.at(ended, pieces[:, Column.PHASE], pieces[:, Column.ENDED])
    started = np.full(_PHASES, np.iinfo(np.int64).max)
    np.minimum.at(started, pieces[:, Column.PHASE], pieces[:, Column.STARTED])
    return claims, started[1:] - ended[:-1]


def _transfer(threads: int, isa: str) -> float:
    """Return the seconds per byte that a thread reads or overwrites in another core's cache."""
    turns = [
        (_copies(_native.ThreadPool(1), isa, threads), _copies(_native.ThreadPool(threads), isa, threads))
        for _ in range(_TURNS)
    ]
    alone, busy = (min(median(map(_busy, runs)) for runs in side) for side in zip(*turns, strict=True))
    away = fmean(_share_away(pieces) for _, runs in turns for pieces in runs)
    return max(busy - alone, 0.0) * 1e-9 / (2 * 4 * _ROWS * _WIDTH * max(away, 0.01))


def _busy(pieces: I64) -> float:
    """Return the nanoseconds that all threads together compute in a phase: the median over phases."""
    times = pieces[:, Column.ENDED] - pieces[:, Column.STARTED]
    return float(np.median(np.bincount(pieces[:, Column.PHASE], times)))


def _share_away(pieces: I64) -> float:
    """Return the share of rows that another thread wrote in the previous phase."""
    writers = np.zeros((_PHASES, _ROWS), np.int64)
    for piece in pieces:
        rows = slice(piece[Column.BEGIN], piece[Column.END])
        writers[piece[Column.PHASE], rows] = piece[Column.THREAD]
    return float((writers[1:] != writers[:-1, ::-1]).mean())
