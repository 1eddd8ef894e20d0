"""Measurement of the rates of this processor's kernels, kept for later processes.

A type of weights is measured in some tenths of a second, with matrices that together take as much memory as
a model's, so their bytes come from memory or a cache just as the model's do. The file in the user's folder of
caches holds the rates by processor, instruction set, number of threads and version. A file that is damaged
or of another version is ignored. Rates are measured again after an hour, and after a minute if other programs
used the cores in the meantime.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from chaski import __version__, _native
from chaski.formats.quant import QuantType, row_bytes
from chaski.ml.cpu.thread_rates import reading_rate, waiting_times
from chaski.ml.cpu.weight_files import laid_out_type
from chaski.ml.machine import cpu_model
from chaski.ml.rates import DeviceRates, ProductRates

__all__ = ["processor_rates", "rates_file"]

# Each measurement is the best of the repetitions within this many seconds.
_SECONDS = 0.25
_ROWS, _COLUMNS = 2048, 2048
_MANY = 256
# The fewest and the most bytes of weights that are read, and the most that many tokens are multiplied with.
_LEAST, _MOST, _MOST_WITH_MANY = 16 << 20, 256 << 20, 8 << 20
# Seconds for which rates hold, and those measured while the threads got less than this share of their cores.
_HOLD, _HOLD_DISTURBED, _UNDISTURBED = 3600.0, 60.0, 0.9
# Attention multiplies integers of 16 bits, and weighs values between two products.
_SCORES = 0.25


class _Timed(Struct, frozen=True):
    """Rates that hold until a time, in seconds since 1970."""

    until: float
    rates: DeviceRates


class _Kept(Struct, frozen=True):
    """Content of the file: the rates of each machine."""

    version: str
    machines: dict[str, _Timed]


class _Clock:
    """Times launches, and the share of its cores that a pool got in them."""

    def __init__(self) -> None:
        self._elapsed = self._computed = 0.0

    def best(self, launch: Callable[[], None]) -> float:
        """Launch again and again, and return the fewest seconds of a launch."""
        first = last = time.perf_counter()
        computed, best = time.process_time(), float("inf")
        while last < first + _SECONDS:
            began = last
            launch()
            last = time.perf_counter()
            best = min(best, last - began)
        self._elapsed += last - first
        self._computed += time.process_time() - computed
        return best

    def until(self, threads: int) -> float:
        """Return until when rates hold that this clock measured."""
        is_disturbed = self._computed < _UNDISTURBED * threads * self._elapsed
        return time.time() + (_HOLD_DISTURBED if is_disturbed else _HOLD)


def processor_rates(weight_bytes: Mapping[QuantType, int], threads: int, isa: str = "auto") -> DeviceRates:
    """Return the rates of `threads` threads for types of weights; what is not known yet is measured.

    weight_bytes: bytes of a model's weights by type

    Raises ValueError if this build or this machine lacks the instruction set.
    """
    isa = _native.isa_names()[-1] if isa == "auto" else isa
    total = _bucket(sum(weight_bytes.values()))
    key = f"{cpu_model()}, {isa}, {threads} threads, {total >> 20} MiB"
    kept = _read(rates_file())
    timed = kept.machines.get(key)
    known = timed.rates if timed is not None and time.time() < timed.until else None
    by_type = {} if known is None else dict(known.by_type)
    missing = [type for type in weight_bytes if type.name not in by_type and _is_matrix(type)]
    if known is not None and not missing:
        return known
    pool, clock = _native.ThreadPool(threads), _Clock()
    by_type |= {type.name: _measured(pool, isa, type, total, clock) for type in missing}
    until = clock.until(threads)
    if known is None:
        multiplied = _native.multiply_add_rate(pool, isa, "int8") or 0.0
        known = DeviceRates({}, reading_rate(threads, isa), _SCORES * multiplied, waiting_times(pool, isa)[1])
    elif timed is not None:
        until = min(until, timed.until)
    found = msgspec.structs.replace(known, by_type=by_type)
    with suppress(OSError):
        _write(rates_file(), _Kept(__version__, {**kept.machines, key: _Timed(until, found)}))
    return found


def rates_file() -> Path:
    """Return the file of the rates, in the user's folder of caches."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) / "chaski" / "product-rates.json"


def _bucket(num_bytes: int) -> int:
    """Return the bytes to measure with: a power of two, so that models of similar sizes share rates."""
    return min(max(1 << (max(num_bytes, 1).bit_length() - 1), _LEAST), _MOST)


def _is_matrix(type: QuantType) -> bool:
    return int(laid_out_type(type)) in _native.matrix_types()


def _measured(pool: _native.ThreadPool, isa: str, type: QuantType, total: int, clock: _Clock) -> ProductRates:
    """Measure products with one and with many tokens."""
    each = _native.matrix_bytes(int(laid_out_type(type)), _ROWS, _COLUMNS)
    count = max(1, total // each)
    memory = _native.Weights(count * each)
    content = np.random.Generator(np.random.SFC64(1)).integers(0, 64, 1 << 16, np.uint8).view(np.float32)
    taken = memory.vector(0, count * each // 4)
    for begin in range(0, len(taken), len(content)):
        taken[begin : begin + len(content)] = content[: len(taken) - begin]
    matrices = [_matrix(memory, type, index * each) for index in range(count)]
    few = matrices[: max(1, _MOST_WITH_MANY // each)]
    reading = count * each / _seconds(pool, isa, type, matrices, 1, clock)
    products = len(few) * _ROWS * _COLUMNS * _MANY / _seconds(pool, isa, type, few, _MANY, clock)
    # Files have fewer bytes than the kernels' layout of the same weights.
    return ProductRates(reading * _ROWS * row_bytes(type, _COLUMNS) / each, products)


def _matrix(memory: _native.Weights, type: QuantType, offset: int) -> _native.WeightMatrix:
    matrix = memory.matrix(
        offset, int(laid_out_type(type)), _ROWS, _COLUMNS, row_bytes(type, _COLUMNS), False
    )
    matrix.set_laid_out()
    return matrix


def _seconds(
    pool: _native.ThreadPool,
    isa: str,
    type: QuantType,
    matrices: list[_native.WeightMatrix],
    tokens: int,
    clock: _Clock,
) -> float:
    """Return the time of products of all matrices with the same rows."""
    is_rounded = _native.is_quantized(int(laid_out_type(type)))
    picks = _native.VariantPicks(isa)
    picks.settle()
    x, y = 0, 4 * tokens * _COLUMNS
    rounded = y + 4 * tokens * _ROWS
    size = rounded + _native.quantized_bytes(tokens * _COLUMNS)
    in_super_blocks = is_rounded and _native.wants_super_blocks(int(type))
    plan = _native.Plan(pool, isa, picks, size, ["rows"], [tokens], in_super_blocks)
    if is_rounded:
        plan.quantize(dim=0, width=_COLUMNS, k=_COLUMNS, x=x, quantized=rounded)
        plan.barrier()
    source = {"x": None, "quantized": rounded} if is_rounded else {"x": x, "quantized": None}
    for matrix in matrices:
        plan.matmul(dim=0, weight=matrix, weights=None, bias=None, residual=None, y=y, **source)
        plan.barrier()
    plan.finish()
    plan.floats(x, tokens, _COLUMNS)[:] = 1.0

    def launch() -> None:
        plan.launch([tokens])
        plan.wait()

    return clock.best(launch)


def _read(path: Path) -> _Kept:
    """Return the rates in the file; none if it is damaged or of another version."""
    try:
        kept: _Kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return _Kept(__version__, {})
    return kept if kept.version == __version__ else _Kept(__version__, {})


def _write(path: Path, kept: _Kept) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
