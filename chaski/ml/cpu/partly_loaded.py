"""Matrices that do not all fit into memory: which are in memory, and how the disk reads the others.

A pass needs every matrix in the same order. If memory held what was used last, as the system's cache does, a
pass over a model that is a little too large would find nothing in it. So a fixed set of matrices is in
memory, spread evenly over a pass. The others are read from the disk, always a little ahead of the pass, by
the stream of `native/include/weight_stream.h`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic

from chaski import _native
from chaski.errors import OutOfMemoryError
from chaski.formats.gguf import TensorInfo
from chaski.ml.cpu.weight_files import StoredMatrix
from chaski.ml.graph import Weight
from chaski.ml.machine import available_memory, spare_memory

__all__ = ["PartlyLoaded", "spread"]

# Fewer bytes than these never stay free: Python and the system's cache of programs need some.
_LEAST_SPARE = 64 << 20
# Memory for the next matrices: what a disk with 2 GB/s reads in 16 ms.
_AHEAD = 32 << 20
# Reads of 2 MB that the disk has at the same time. One was enough for a disk with 2.9 GB/s.
_READERS = 2
# Seconds between two looks at the free memory, and bytes that come into memory after a look.
_LOOK = 1.0
_STEP = 64 << 20


def spread(weights: Iterable[tuple[Weight, TensorInfo]]) -> list[tuple[Weight, TensorInfo]]:
    """Return weights in an order in which the first ones, however many, are spread evenly over all.

    Those that are larger than the memory for the next ones come first: the others would have too few others
    between them, and the disk would wait. Tables of which a token reads one row come last.
    """
    pairs = list(weights)
    tables = _tables([weight.name for weight, _ in pairs])
    used = [pair for pair in pairs if pair[0].name not in tables]
    large = [pair for pair in used if pair[1].nbytes > _AHEAD]
    small = [pair for pair in used if pair[1].nbytes <= _AHEAD]
    bits = max(1, (len(small) - 1).bit_length())
    numbers = sorted(range(len(small)), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
    return [
        *large,
        *(small[number] for number in numbers),
        *(pair for pair in pairs if pair[0].name in tables),
    ]


class PartlyLoaded:
    """The matrices of a model in the order in which they come into memory.

    `count` of them are there, and a plan that computes finds the same ones there until it ends.
    """

    def __init__(self, matrices: Sequence[StoredMatrix], names: Sequence[str], threads: int) -> None:
        """`names`: those of the weights in the order of a pass. `threads`: those that compute."""
        self.matrices = matrices
        self.count = 0
        self._sizes = [_size(matrix) for matrix in matrices]
        places = {name: place for place, name in enumerate(names)}
        by_place = sorted(range(len(matrices)), key=lambda number: places[matrices[number].weight.name])
        tables = _tables(names)
        self._pass = [number for number in by_place if matrices[number].weight.name not in tables]
        self._looked = monotonic()
        self._stream = _native.WeightStream(threads)

    @property
    def held_bytes(self) -> int:
        """Bytes of the matrices in memory."""
        return sum(self._sizes[: self.count])

    @property
    def file_bytes(self) -> int:
        """Bytes of the matrices that every batch reads from their files, and of tables."""
        return sum(self._sizes[self.count :])

    @property
    def spare(self) -> int:
        """Bytes that matrices in memory leave free, those for the next matrices included."""
        return _spare() + _AHEAD

    def begin(self, others: int) -> Sequence[StoredMatrix]:
        """Return the matrices to lay out in the memory that is free beside `others` more bytes.

        Raises OutOfMemoryError if the system refuses the memory or the threads that read the others.
        """
        try:
            self._stream.start(_AHEAD, [matrix.target for matrix in self.matrices], _READERS)
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemoryError(
                f"weights cannot be read while others are computed: {str(error) or 'no memory'}"
            ) from None
        return self.fill(available_memory() - _spare() - others)

    def fill(self, room: int) -> Sequence[StoredMatrix]:
        """Return the matrices to lay out in `room` more bytes of memory. They count as laid out."""
        first = self.count
        while self.count < len(self._pass) and self._sizes[self.count] <= room:
            room -= self._sizes[self.count]
            self.count += 1
        return self.matrices[first : self.count]

    def read_ahead(self) -> None:
        """Read the matrices that are not in memory, ahead of each pass. Not while a plan computes."""
        self._stream.set([self.matrices[number].target for number in self._pass if number >= self.count])

    def close(self) -> None:
        """Stop reading."""
        self._stream.stop()

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


def _size(matrix: StoredMatrix) -> int:
    rows, columns = matrix.info.shape[-2:]
    return _native.matrix_bytes(int(matrix.type), rows, columns)
