"""Matrices that do not all fit into memory: which are in memory, and how the disk reads the others.

A pass needs every matrix in the same order. If memory held what was used last, as the system's cache does, a
pass over a model that is a little too large would find nothing in it. So a fixed set of matrices is in
memory, spread evenly over a pass, and while each of the others is computed, the system reads the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic

from chaski import _native
from chaski.formats.gguf import TensorInfo
from chaski.ml.cpu.weight_files import StoredMatrix
from chaski.ml.graph import Weight
from chaski.ml.machine import available_memory, spare_memory

__all__ = ["PartlyLoaded", "spread"]

# Fewer bytes than these never stay free: Python and the system's cache of programs need some.
_LEAST_SPARE = 96 << 20
# The share of the spare memory that the system may fill with the next matrices. With half of 50 MB, some were
# dropped before they were read.
_AHEAD = 0.3
# Seconds between two looks at the free memory, and bytes that come into memory after a look.
_LOOK = 1.0
_STEP = 64 << 20


def spread(weights: Iterable[tuple[Weight, TensorInfo]]) -> list[tuple[Weight, TensorInfo]]:
    """Return weights in an order in which the first ones, however many, are spread evenly over all.

    Tables of which a token reads one row come last.
    """
    pairs = list(weights)
    tables = _tables([weight.name for weight, _ in pairs])
    used = [pair for pair in pairs if pair[0].name not in tables]
    bits = max(1, (len(used) - 1).bit_length())
    numbers = sorted(range(len(used)), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
    return [*(used[number] for number in numbers), *(pair for pair in pairs if pair[0].name in tables)]


class PartlyLoaded:
    """The matrices of a model in the order in which they come into memory.

    `count` of them are there, and a plan that computes finds the same ones there until it ends.
    """

    def __init__(self, matrices: Sequence[StoredMatrix], names: Sequence[str]) -> None:
        """`names`: those of the weights in the order of a pass."""
        self.matrices = matrices
        self.count = 0
        self._sizes = [_size(matrix) for matrix in matrices]
        places = {name: place for place, name in enumerate(names)}
        by_place = sorted(range(len(matrices)), key=lambda number: places[matrices[number].weight.name])
        tables = _tables(names)
        self._pass = [number for number in by_place if matrices[number].weight.name not in tables]
        self._looked = monotonic()

    @property
    def held_bytes(self) -> int:
        """Bytes of the matrices in memory."""
        return sum(self._sizes[: self.count])

    @property
    def file_bytes(self) -> int:
        """Bytes of the matrices that every batch reads from their files, and of tables."""
        return sum(self._sizes[self.count :])

    def begin(self, others: int) -> Sequence[StoredMatrix]:
        """Return the matrices to lay out in the memory that is free beside `others` more bytes."""
        return self.fill(available_memory() - _spare() - others)

    def fill(self, room: int) -> Sequence[StoredMatrix]:
        """Return the matrices to lay out in `room` more bytes of memory. They count as laid out."""
        first = self.count
        while self.count < len(self._pass) and self._sizes[self.count] <= room:
            room -= self._sizes[self.count]
            self.count += 1
        return self.matrices[first : self.count]

    def read_ahead(self) -> None:
        """Let each matrix that a pass reads be followed by the next ones, also from one pass to the next."""
        read = [number for number in self._pass if number >= self.count]
        window = int(_AHEAD * _spare())
        for number, later in _windows(read, self._sizes, window):
            self.matrices[number].target.stream([self.matrices[each].target for each in later], window)

    def adapt(self, pool: _native.ThreadPool) -> Sequence[StoredMatrix]:
        """Give memory back that other programs need, or take more -> the matrices to lay out.

        Call it on the thread that launches plans. It waits for a plan that computes.
        """
        now = monotonic()
        if now - self._looked < _LOOK:
            return ()
        self._looked = now
        free, spare = available_memory(), _spare()
        more: Sequence[StoredMatrix] = ()
        if spare // 2 <= free <= 2 * spare:
            return more
        pool.wait()
        if free < spare:
            while self.count and free < spare:
                self.count -= 1
                self.matrices[self.count].target.release()
                free += self._sizes[self.count]
        else:
            more = self.fill(min(_STEP, free - spare))
        self.read_ahead()
        return more


def _tables(names: Sequence[str]) -> Sequence[str]:
    """Return the names of tables of which a token reads one row. Embeddings may be the output too."""
    return ("per_layer_token_embd.weight", *(["token_embd.weight"] if "output.weight" in names else []))


def _spare() -> int:
    return max(_LEAST_SPARE, spare_memory())


def _windows(
    numbers: Sequence[int], sizes: Sequence[int], window: int
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield each number of a cycle with those that enter the window behind it, at least the next one."""
    end, held = 0, 0
    for at, number in enumerate(numbers):
        later: list[int] = []
        if end <= at:
            end, held = at + 1, 0
        while end < at + len(numbers):
            following = numbers[end % len(numbers)]
            if held and held + sizes[following] > window:
                break
            later.append(following)
            held += sizes[following]
            end += 1
        yield number, later
        if end > at + 1:
            held -= sizes[numbers[(at + 1) % len(numbers)]]


def _size(matrix: StoredMatrix) -> int:
    rows, columns = matrix.info.shape[-2:]
    return _native.matrix_bytes(int(matrix.type), rows, columns)
