"""Open damaged copies of GGUF files in a process with little memory, and print the results as JSON.

test_gguf_mutated.py runs it as `open_mutants.py FOLDER SEED COUNT FILE...`; it is not a test itself.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from chaski.errors import GGUFError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFValue, StringArray, open_gguf

MEMORY_BYTES = 200_000_000
SECONDS = 2.0
HOSTILE = [
    0,
    1,
    7,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**61,
    2**63 - 1,
    2**63,
    2**64 - 8,
    2**64 - 1,
]


def flip_bits(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def set_hostile_count(content: bytearray, rng: random.Random) -> None:
    """Overwrite one small number of 32 or 64 bits, such as a count, length, size or type."""
    while True:
        width = rng.choice([4, 8])
        place = rng.randrange(4, len(content) - width)
        if int.from_bytes(content[place : place + width], "little") < 2**20:
            content[place : place + width] = (rng.choice(HOSTILE) % 2 ** (8 * width)).to_bytes(
                width, "little"
            )
            return


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [flip_bits, truncate, set_hostile_count]


def use(value: GGUFValue) -> None:
    if isinstance(value, StringArray):
        value.tolist()
    elif isinstance(value, tuple):
        for part in value:
            use(part)
    elif isinstance(value, np.ndarray):
        value.tobytes()


def open_and_use(path: Path) -> None:
    with open_gguf(path) as file:
        for value in file.metadata.values():
            use(value)
        for info in file.tensors.values():
            dequantize(info.data, info.type, info.shape)


def outcome(path: Path) -> str:
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        open_and_use(path)
    except (GGUFError, UnsupportedError) as error:
        return type(error).__name__ if path.name in str(error) else f"error without a place: {error}"
    except BaseException as error:
        return f"unexpected {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "loaded"


def timed_out(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(folder: Path, seed: int, count: int, sources: list[Path]) -> None:
    originals = [source.read_bytes() for source in sources]
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    signal.signal(signal.SIGALRM, timed_out)
    limit_memory()
    tracemalloc.start()
    for index in range(count):
        content = bytearray(rng.choice(originals))
        MUTATIONS[index % len(MUTATIONS)](content, rng)
        path = folder / f"mutant-{index}.gguf"
        path.write_bytes(content)
        start = time.perf_counter()
        outcomes[outcome(path)] += 1
        slowest = max(slowest, time.perf_counter() - start)
        path.unlink()
    print(json.dumps({"outcomes": outcomes, "slowest": slowest, "peak": tracemalloc.get_traced_memory()[1]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(name) for name in sys.argv[4:]])
