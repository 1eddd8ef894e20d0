"""Measure the speed and error of quantizing weights, next to ggml.

    python -m benchmarks.quantizing [--ggml LIBRARY] [--rounds 5]

Prints megabytes of float32 input for each type, per second of one thread's processor time, and per second of
the clock with a thread on each core. The error of the result follows. LIBRARY is any shared library that
exports ggml's `ggml_quantize_chunk`; with it, both quantize the same weights in turns. ggml's function uses
one thread, so it has no column for the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.formats.dequantize import dequantize
from chaski.formats.quant import QuantType
from chaski.formats.quantize import QUANTIZABLE, quantize

_SHAPE = (512, 4096)

_NEED_IMPORTANCE = (
    *(QuantType.IQ1_S, QuantType.IQ1_M, QuantType.IQ2_XXS),
    *(QuantType.IQ2_XS, QuantType.IQ2_S, QuantType.IQ3_XXS),
)

Quantize = Callable[[], NDArray[np.uint8]]


def best_rates(work: Quantize, megabytes: float, best: tuple[float, float]) -> tuple[float, float]:
    """Run `work` once; return the better rates per second of a core and of the clock."""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return max(best[0], megabytes / cpu), max(best[1], megabytes / clock)


def of_ggml(
    library: ctypes.CDLL,
    x: NDArray[np.float32],
    type: QuantType,
    importance: NDArray[np.float32] | None = None,
) -> Quantize:
    """Quantize `x` by ggml's function; all columns have the same importance where it demands one."""
    library.ggml_quantize_init(ctypes.c_int(int(type)))
    if importance is None and type in _NEED_IMPORTANCE:
        importance = np.ones(x.shape[1], np.float32)
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def work() -> NDArray[np.uint8]:
        out = np.empty(x.size // type.block_size * type.block_bytes, np.uint8)
        given = None if importance is None else importance.ctypes.data
        chunk(int(type), x.ctypes.data, out.ctypes.data, 0, *x.shape, given)
        return out

    return work


def error(
    x: NDArray[np.float32],
    type: QuantType,
    data: NDArray[np.uint8],
    importance: NDArray[np.float32] | float = 1,
) -> float:
    """Root mean square error, weighted by the importance of columns, over the standard deviation of `x`."""
    difference: NDArray[Any] = dequantize(data, type, x.shape) - x
    return float(np.sqrt(np.mean(difference * difference * importance)) / x.std())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantizing")
    parser.add_argument("--ggml", help="a shared library with ggml_quantize_chunk")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.ggml) if arguments.ggml else None
    x = np.random.default_rng(1).standard_normal(_SHAPE, np.float32)
    print("| type | one thread: MB/s | all cores: MB/s | error | ggml, one thread: MB/s | error |")
    print("|---|---|---|---|---|---|")
    for type in QUANTIZABLE:
        sides: list[Quantize] = [partial(quantize, x, type, 1), partial(quantize, x, type)]
        if library is not None:
            sides.append(of_ggml(library, x, type))
        rates = [(0.0, 0.0)] * len(sides)
        for _ in range(arguments.rounds):
            rates = [best_rates(work, x.nbytes / 1e6, best) for work, best in zip(sides, rates, strict=True)]
        cells = [f"{rates[0][0]:.0f}", f"{rates[1][1]:.0f}", f"{error(x, type, sides[0]()):.5f}"]
        if library is not None:
            cells += [f"{rates[2][0]:.0f}", f"{error(x, type, sides[2]()):.5f}"]
        print(f"| {type.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
