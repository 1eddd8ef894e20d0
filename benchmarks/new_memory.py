"""Measure the time to allocate huge pages: the cost of loading in addition to reading the file.

    python -m benchmarks.new_memory [--megabytes 770] [--threads 2]

Allocates memory that was just freed, and memory after a pause of several seconds, in turns; prints medians.
During a pause, a virtual machine may return free memory to its host, and must then request it again page by
page.
"""

from __future__ import annotations

import argparse
import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

__all__: list[str] = []

_PAUSE_SECONDS = 4


def main() -> None:
    """Measure and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=770, help="size of the weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, advice in (("huge pages", mmap.MADV_HUGEPAGE), ("small pages", mmap.MADV_NOHUGEPAGE)):
            time.sleep(_PAUSE_SECONDS)
            for state in (f"after {_PAUSE_SECONDS} s", "at once"):
                taken = _take(arguments.megabytes << 20, advice, arguments.threads)
                seconds.setdefault(f"{name}, {state}", []).append(taken)
    for name, values in seconds.items():
        print(f"{name:24}{median(values):8.3f} s ({min(values):.3f} to {max(values):.3f})")


def _take(size: int, advice: int, threads: int) -> float:
    """Touch every page of new memory and free it; return the seconds of the touching."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(advice)
        pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: part.fill(1), np.array_split(pages, threads)))
        seconds = time.perf_counter() - started
        del pages
    return seconds


if __name__ == "__main__":
    main()
