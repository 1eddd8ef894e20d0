"""Quantization: float tensors to the blocks of `quant.py`, on all cores.

The native core computes. Plain numbers and blocks without a search are ggml's to the bit. For the other types
the core searches for the scales: the format fixes the meaning of a block, but not the choice of its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski import _native
from chaski.errors import FormatError, UnsupportedError
from chaski.formats.quant import Bytes, Floats, QuantType, as_float32, row_bytes
from chaski.formats.scale_search import element_weights
from chaski.formats.searched import BY_IMPORTANCE, SEARCHED

_LARGEST = {
    QuantType.F32: float(np.finfo(np.float32).max),
    QuantType.BF16: 255 * 2.0**120,
    QuantType.NVFP4: 6 * 448.0,
}
_LARGEST_HALF = 65504.0
_ELEMENTS_AT_ONCE = 1 << 16  # a core's cache holds them
_PARTS_OF_A_THREAD = 4  # so that a thread that falls behind leaves some to the others
# Elements that a thread should have: it takes a tenth of a millisecond to start.
_WORTH_A_THREAD = 1 << 20
_SEARCHED_WORTH_A_THREAD = 1 << 16
_LEAST_IMPORTANCE = 1e-6  # of the mean
# Magnitudes need not count in addition with so many levels, or with so few that all large ones share one.
_PLAINLY_WEIGHTED = (QuantType.Q6_K, QuantType.Q1_0, QuantType.Q2_0, QuantType.TQ1_0, QuantType.TQ2_0)


def quantize(
    array: NDArray[np.floating[Any] | np.uint16],
    type: QuantType,
    num_threads: int | None = None,
    importance: Floats | None = None,
) -> Bytes:
    """Return the bytes of `array` as a tensor of `type`: uint8, one dimension.

    array: numbers; those of uint16 are the bits of BF16.
    num_threads: by default one per core, or fewer for small arrays. The bytes do not depend on it.
    importance: how much the error of each column counts: (columns,). Types of eight bits or more ignore it.

    Types: those of `QUANTIZABLE`; UnsupportedError for others.
    FormatError when the rows are not whole blocks, or a value is infinite, not a number or too large for the
    type.
    """
    if type not in _ENCODERS:
        raise UnsupportedError(f"quantizing to {type.name} is not supported; " + _choices())
    row_bytes(type, array.shape[-1])
    values = array.reshape(-1, type.block_size)
    blocks = np.empty((len(values), type.block_bytes), np.uint8)
    by_column = None
    if importance is not None and type in BY_IMPORTANCE:
        by_column = _usable(importance).reshape(-1, type.block_size)

    def encode(part: range) -> None:
        for begin in part:
            some = slice(begin, min(begin + part.step, part.stop))
            floats = as_float32(values[some])
            if by_column is None:
                _ENCODERS[type](floats, type, blocks[some])
            else:
                columns = by_column[np.arange(begin, begin + len(floats)) % len(by_column)]
                _encode_by_importance(floats, columns, type, blocks[some])

    threads = num_threads or _threads_worth_it(array.size, type)
    parts = _parts(len(values), threads, _ELEMENTS_AT_ONCE // type.block_size)
    if threads < 2:
        for part in parts:
            encode(part)
    else:
        with ThreadPoolExecutor(threads, "chaski-quantize") as pool:
            list(pool.map(encode, parts))
    return blocks.reshape(-1)


def _parts(count: int, threads: int, step: int) -> list[range]:
    """Split `count` blocks between threads: ranges whose steps are the blocks to encode at once."""
    size = max(1, -(-count // (threads * _PARTS_OF_A_THREAD)))
    return [range(begin, min(begin + size, count), step) for begin in range(0, count, size)]


def _threads_worth_it(num_elements: int, type: QuantType) -> int:
    """Threads that quantize that many elements faster than fewer would, one per core at most."""
    worth = _SEARCHED_WORTH_A_THREAD if type in SEARCHED else _WORTH_A_THREAD
    return max(1, min(_num_cores(), num_elements // worth))


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _usable(importance: Floats) -> Floats:
    """Raise the importance of columns that no token used, so that their values are not lost entirely."""
    least = np.float32(_LEAST_IMPORTANCE) * importance.mean()
    return np.maximum(importance, least) if least > 0 else np.ones_like(importance)


def _choices() -> str:
    return "choose one of " + ", ".join(type.name for type in _ENCODERS)


def _peak(values: Floats) -> float:
    """The largest magnitude; not a number if a value is not."""
    return float(np.maximum(values.max(initial=0.0), -values.min(initial=0.0)))


def _check_range(peak: float, type: QuantType) -> None:
    """Refuse a tensor whose largest magnitude is `peak`. Raises FormatError."""
    if not np.isfinite(peak):
        raise FormatError(f"a tensor with values that are infinite or not a number cannot become {type.name}")
    if peak > _limit(type):
        raise FormatError(f"the value {peak:g} is too large for {type.name}, whose limit is {_limit(type):g}")


def _limit(type: QuantType) -> float:
    """The largest magnitude that a type can hold; that of a scale in half precision for blocks."""
    return _LARGEST.get(type, _LARGEST_HALF)


def _encode_plainly(values: Floats, type: QuantType, out: Bytes) -> None:
    """Encode numbers, or blocks whose scales follow from their extremes."""
    peak = _native.encode_blocks(int(type), values.reshape(-1), _limit(type), out.reshape(-1))
    _check_range(peak, type)


def _encode_by_search(values: Floats, type: QuantType, out: Bytes) -> None:
    """Encode blocks whose scales the native core searches for."""
    _check_range(_peak(values), type)
    out[:] = SEARCHED[type](values, None).view(np.uint8).reshape(out.shape)


def _encode_by_importance(values: Floats, importance: Floats, type: QuantType, out: Bytes) -> None:
    """Encode blocks so that errors in columns of large importance are small."""
    _check_range(_peak(values), type)
    weights = importance if type in _PLAINLY_WEIGHTED else element_weights(values, importance)
    out[:] = BY_IMPORTANCE[type](values, weights).view(np.uint8).reshape(out.shape)


_ENCODERS: dict[QuantType, Callable[[Floats, QuantType, Bytes], None]] = {
    QuantType.F32: _encode_plainly,
    QuantType.F16: _encode_plainly,
    QuantType.BF16: _encode_plainly,
    QuantType.Q4_0: _encode_plainly,
    QuantType.Q4_1: _encode_plainly,
    QuantType.Q5_0: _encode_plainly,
    QuantType.Q5_1: _encode_plainly,
    QuantType.Q8_0: _encode_plainly,
    QuantType.Q1_0: _encode_plainly,
    QuantType.NVFP4: _encode_plainly,
    **dict.fromkeys(SEARCHED, _encode_by_search),
}
QUANTIZABLE = tuple(_ENCODERS)
"""The types that `quantize` can write."""
