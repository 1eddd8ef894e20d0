"""The tensor table of a GGUF file: names, shapes, types, and where each tensor's bytes are.

After it was read every tensor lies inside the file, apart from the others, in whole blocks of a known type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chaski.errors import FormatError, UnsupportedError
from chaski.formats.gguf_metadata import Cursor
from chaski.formats.quant import FILE_TYPES, REMOVED_TYPES, UNSUPPORTED_TYPES, QuantType

DEFAULT_ALIGNMENT = 32
ALIGNMENTS = "powers of two from 8 to 65536"
_LARGEST_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4
MAX_TENSORS = 1 << 16
_SMALLEST_ENTRY = 33  # a name of one byte and its length, one dimension, type and offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its description and the place of its bytes."""

    name: str
    shape: tuple[int, ...]  # in elements, outermost first: (rows, columns)
    type: QuantType
    path: Path  # the file, or the part of a split file, that holds it
    offset: int  # of its first byte in that file
    nbytes: int
    # Read-only, in the map: (nbytes,), or of a part of a tensor (*outer, blocks, block bytes), strided.
    data: NDArray[np.uint8] = field(repr=False, compare=False)

    @classmethod
    def filled(cls, name: str, shape: tuple[int, ...], value: float, path: Path) -> TensorInfo:
        """Return a tensor of floats that no file contains, with this value in each element."""
        data = np.full(shape, value, np.float32).view(np.uint8).reshape(-1)
        return cls(name, shape, QuantType.F32, path, 0, data.nbytes, data)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one to the next along each axis but the last, in the file."""
        return self._blocks.strides[: len(self.shape) - 1]

    def part(self, name: str, axis: int, index: slice) -> TensorInfo:
        """Return what `index` takes along an axis as a separate tensor, with nothing copied.

        Raises FormatError where that would cut rows of blocks.
        """
        if axis == len(self.shape) - 1 and self.type.block_size > 1:
            raise FormatError(f"{self.path}: tensor {self.name}: rows of {self.type.name} cannot be cut")
        begin, end, step = index.indices(self.shape[axis])
        blocks = self._blocks
        data = blocks[(slice(None),) * axis + (slice(begin, end, step),)]
        return replace(
            self,
            name=name,
            shape=(*self.shape[:axis], data.shape[axis], *self.shape[axis + 1 :]),
            offset=self.offset + begin * blocks.strides[axis],
            nbytes=data.size,
            data=data,
        )

    @property
    def _blocks(self) -> NDArray[np.uint8]:
        type = self.type
        return self.data.reshape(*self.shape[:-1], self.shape[-1] // type.block_size, type.block_bytes)


class _Entry(NamedTuple):
    """A row of the tensor table."""

    begin: int  # of this row in the file
    name: str
    shape: tuple[int, ...]
    type: QuantType
    offset: int  # in the data section


def is_alignment(value: int) -> bool:
    """Return whether tensors may be aligned to `value` bytes."""
    return 8 <= value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0


def align_up(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` from `offset` on."""
    return -(-offset // alignment) * alignment


def read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Read the table of `count` tensors from the cursor on, the last part of the header."""
    return _place(cursor, read_entries(cursor, count), alignment)


def read_entries(cursor: Cursor, count: int) -> list[_Entry]:
    """Read the rows of the table without looking for the tensors' bytes."""
    cursor.count(count, "tensors", _SMALLEST_ENTRY, MAX_TENSORS)
    return [_read_entry(cursor, index) for index in range(count)]


def _read_entry(cursor: Cursor, index: int) -> _Entry:
    begin = cursor.offset
    name = cursor.name(f"the name of tensor {index}")
    what = f"tensor {name!r}"
    dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed", begin)
    innermost_first = [cursor.u64(f"the shape of {what}") for _ in range(dimensions)]
    shape = tuple(reversed(innermost_first))
    if 0 in shape:
        raise cursor.error(f"{what} has a dimension of size 0: {shape}", begin)
    number = cursor.u32(f"the type of {what}")
    type = _tensor_type(cursor, number, what, begin)
    if shape[-1] % type.block_size:
        wanted = f"whole {type.name} blocks of {type.block_size}"
        raise cursor.error(f"{what} has rows of {shape[-1]} elements, not {wanted}", begin)
    return _Entry(begin, name, shape, type, cursor.u64(f"the offset of {what}"))


def _tensor_type(cursor: Cursor, number: int, what: str, begin: int) -> QuantType:
    if number in UNSUPPORTED_TYPES:
        problem = f"{what}: type {UNSUPPORTED_TYPES[number]} is not supported yet"
        raise cursor.error(problem, begin, UnsupportedError)
    if number in REMOVED_TYPES:
        problem = f"{what}: type {REMOVED_TYPES[number]} was removed from the format; quantize again"
        raise cursor.error(problem, begin, UnsupportedError)
    if number not in FILE_TYPES:
        raise cursor.error(f"{what} has the unknown type {number}", begin)
    return QuantType(number)


def _place(cursor: Cursor, entries: list[_Entry], alignment: int) -> dict[str, TensorInfo]:
    """Find each tensor's bytes in the data section, which begins at the first aligned byte from here on."""
    section = cursor.begin + align_up(cursor.offset - cursor.begin, alignment)
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        if entry.name in tensors:
            raise cursor.error(f"tensor {entry.name!r} appears twice", entry.begin)
        if entry.offset % alignment:
            problem = f"tensor {entry.name!r} has the offset {entry.offset}, not a multiple of {alignment}"
            raise cursor.error(problem, entry.begin)
        tensors[entry.name] = _locate(cursor, entry, section + entry.offset)
    _check_overlap(cursor, tensors)
    return tensors


def _locate(cursor: Cursor, entry: _Entry, begin: int) -> TensorInfo:
    nbytes = math.prod(entry.shape) // entry.type.block_size * entry.type.block_bytes
    size = len(cursor.view)
    if begin + nbytes > size:
        problem = f"tensor {entry.name!r} is {nbytes} bytes from byte {begin} on, the file ends at {size}"
        raise cursor.error(f"truncated: {problem}", entry.begin)
    data = cursor.data[begin : begin + nbytes]
    return TensorInfo(entry.name, entry.shape, entry.type, cursor.path, begin, nbytes, data)


def _check_overlap(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for one, other in pairwise(in_order):
        if one.offset + one.nbytes > other.offset:
            raise cursor.error(f"tensors {one.name!r} and {other.name!r} overlap", other.offset)
