"""Measure each variant of the kernels for quantized weights, by type and number of tokens.

    python -m benchmarks.variants --types Q4_K Q8_0 --tokens 1 2 8 --threads 2

Each thread multiplies its own matrix, which is larger than its share of the caches. The variants take turns,
and the table shows medians: for few tokens the GB of weights read per second, for many tokens the billions of
multiply-adds. chaski itself measures the variants while it answers (`chaski info` shows its picks).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import numpy as np

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.machine import cpu_name, physical_cores

_COLUMNS = 2048
_FEW = 12  # tokens: up to this many, reading weights limits the speed


class Products:
    """Products of random weights of one type with a number of tokens, on several threads at once."""

    def __init__(self, type: QuantType, tokens: int, threads: int, megabytes: int, isa: str) -> None:
        row_bytes = _COLUMNS // type.block_size * type.block_bytes
        rows = max(megabytes * 1_000_000 // row_bytes if tokens <= _FEW else 400_000 // tokens, 64) // 16 * 16
        random = np.random.default_rng(0)
        some = random.integers(0, 256, (16, row_bytes), np.uint8)
        data = np.ascontiguousarray(np.broadcast_to(some, (rows // 16, 16, row_bytes))).reshape(-1)
        matrices = [_native.pack_matrix(int(type), data, rows, _COLUMNS, isa) for _ in range(threads)]
        x = random.standard_normal((tokens, _COLUMNS), np.float32)
        self._jobs: list[Callable[..., object]] = [
            partial(_native.matmul, matrix, x, isa) for matrix in matrices
        ]
        self.bytes = threads * rows * row_bytes
        self.multiply_adds = threads * rows * _COLUMNS * tokens

    def seconds(self, pool: ThreadPoolExecutor, variant: int) -> float:
        """Return the time until all threads are done."""
        begin = time.perf_counter()
        for job in [pool.submit(job, variant=variant) for job in self._jobs]:
            job.result()
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--types", nargs="+", default=["Q4_K", "Q6_K", "Q8_0", "Q4_0"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 4, 8, 12, 32, 256])
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=48, help="of weights for each thread")
    parser.add_argument("--isa", default=_native.isa_names()[-1])
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {arguments.isa}, {arguments.threads} threads")
    with ThreadPoolExecutor(arguments.threads) as pool:
        for name in arguments.types:
            for tokens in arguments.tokens:
                products = Products(
                    QuantType[name], tokens, arguments.threads, arguments.megabytes, arguments.isa
                )
                variants = _native.variant_names(int(QuantType[name]), tokens, arguments.isa)
                seconds: list[list[float]] = [[] for _ in variants]
                for _ in range(arguments.rounds):
                    for variant, times in enumerate(seconds):
                        times.append(products.seconds(pool, variant))
                work = products.bytes if tokens <= _FEW else products.multiply_adds
                unit = "GB/s" if tokens <= _FEW else "billion multiply-adds/s"
                rates = [f"{variants[i]} {work / median(times) / 1e9:.1f}" for i, times in enumerate(seconds)]
                print(f"{name}, {tokens} tokens, {unit}: {', '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
