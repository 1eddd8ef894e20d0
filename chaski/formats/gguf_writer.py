"""Writes GGUF files, version 3, one tensor at a time: for fixtures, conversion and requantizing.

A file appears under its name only when it is complete and on disk.
"""

from __future__ import annotations

import math
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import FormatError
from chaski.formats.gguf import MAGIC
from chaski.formats.gguf_metadata import NUMBERS, GGUFValue, ValueType
from chaski.formats.gguf_tensors import ALIGNMENTS, DEFAULT_ALIGNMENT, MAX_DIMENSIONS, align_up, is_alignment
from chaski.formats.quant import QuantType, row_bytes
from chaski.formats.quantize import quantize
from chaski.formats.string_array import StringArray

_VERSION = 3
_ELEMENTS_AT_ONCE = 1 << 20
_SCALAR_INTEGERS = ("<u4", "<i4", "<u8", "<i8")
_ARRAY_INTEGERS = ("<i4", "<i8", "<u8")
_TYPE_OF_DTYPE = {dtype: type for type, dtype in NUMBERS.items()}


class LazyTensor(Struct, frozen=True):
    """A tensor whose bytes are made while the file is written.

    chunks: called once; gives uint8 arrays that together are the tensor's bytes.
    """

    shape: tuple[int, ...]
    type: QuantType
    chunks: Callable[[], Iterable[NDArray[np.uint8]]]

    @property
    def nbytes(self) -> int:
        return row_bytes(self.type, self.shape[-1]) * math.prod(self.shape[:-1])


Source: TypeAlias = LazyTensor | tuple[NDArray[np.floating[Any]], QuantType]
MetadataValue: TypeAlias = "GGUFValue | Sequence[Any] | np.generic"


def write_gguf(
    path: str | Path, metadata: Mapping[str, MetadataValue], tensors: Mapping[str, Source]
) -> None:
    """Write a GGUF file; in addition to the caller's data, no more than a part of one tensor is held.

    metadata: an int becomes uint32 if it fits, else int32, uint64 or int64; a float becomes float32; a list
    of ints int32 or int64. A NumPy scalar or array keeps its own type. An empty array must be a NumPy array.
    tensors: a float array and the type to quantize it to, or a LazyTensor.
    Raises FormatError for content that the format cannot hold; no file remains in that case.
    """
    lazy = {name: _lazy(source) for name, source in tensors.items()}
    alignment = _alignment(metadata)
    with _replaced(Path(path)) as file:
        file.write(header(metadata, lazy))
        for name, tensor in lazy.items():
            _pad(file, alignment)
            _write_tensor(file, name, tensor)
        _pad(file, alignment)  # llama.cpp reads the data of some files as one piece, with its padding


def header(metadata: Mapping[str, MetadataValue], tensors: Mapping[str, LazyTensor]) -> bytes:
    """Return the bytes of a file up to the end of the tensor table."""
    head = MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    entries = (_entry(key, value) for key, value in metadata.items())
    return b"".join(chain([head], entries, _tensor_table(tensors, _alignment(metadata))))


def _lazy(source: Source) -> LazyTensor:
    if isinstance(source, LazyTensor):
        return source
    array, type = source
    return LazyTensor(array.shape, type, lambda: _quantized(array, type))


def _quantized(array: NDArray[np.floating[Any]], type: QuantType) -> Iterator[NDArray[np.uint8]]:
    rows = array.reshape(-1, array.shape[-1])
    step = max(1, _ELEMENTS_AT_ONCE // rows.shape[1])
    return (quantize(rows[begin : begin + step], type) for begin in range(0, len(rows), step))


def _alignment(metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int | np.integer) or not is_alignment(int(alignment)):
        raise FormatError(f"key 'general.alignment' is {alignment!r}; {ALIGNMENTS} are allowed")
    return int(alignment)


def _tensor_table(tensors: Mapping[str, LazyTensor], alignment: int) -> Iterator[bytes]:
    offset = 0
    for name, tensor in tensors.items():
        if not 1 <= len(tensor.shape) <= MAX_DIMENSIONS or 0 in tensor.shape:
            raise FormatError(
                f"tensor {name!r} has the shape {tensor.shape}; 1 to 4 sizes above 0 are allowed"
            )
        sizes = tensor.shape[::-1]
        place = struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.type, offset)
        yield _text(name) + place
        offset = align_up(offset + tensor.nbytes, alignment)


def _entry(key: str, value: MetadataValue) -> bytes:
    try:
        type, encoded = _encode(value)
    except FormatError as error:
        raise FormatError(f"key {key!r}: {error}") from None
    return _text(key) + struct.pack("<I", type) + encoded


def _encode(value: MetadataValue) -> tuple[ValueType, bytes]:
    if isinstance(value, str):
        return ValueType.STRING, _text(value)
    if isinstance(value, bool | int | float | np.generic):
        number = _numbers([value], _SCALAR_INTEGERS)
        return _number_type(number), number.tobytes()
    return ValueType.ARRAY, _encode_array(value)


def _encode_array(values: Any) -> bytes:
    """Encode the element type, the number of elements and the elements."""
    if isinstance(values, StringArray):
        return _array(ValueType.STRING, [_prefixed(values.raw(index)) for index in range(len(values))])
    if isinstance(values, np.ndarray):
        return _number_array(values)
    if not isinstance(values, list | tuple) or not values:
        raise FormatError(f"a {type(values).__name__} of unknown element type")
    if all(isinstance(value, str) for value in values):
        return _array(ValueType.STRING, [_text(value) for value in values])
    if any(isinstance(value, str | bool | int | float | np.generic) for value in values):
        return _number_array(_numbers(values, _ARRAY_INTEGERS))
    return _array(ValueType.ARRAY, [_encode_array(value) for value in values])


def _array(type: ValueType, elements: list[bytes]) -> bytes:
    return struct.pack("<IQ", type, len(elements)) + b"".join(elements)


def _number_array(values: NDArray[Any]) -> bytes:
    if values.ndim != 1:
        raise FormatError(f"an array of {values.ndim} dimensions; only one is possible")
    stored = values.astype(values.dtype.newbyteorder("<"))
    return struct.pack("<IQ", _number_type(stored), len(stored)) + stored.tobytes()


def _numbers(values: Sequence[Any], integers: tuple[str, ...]) -> NDArray[Any]:
    """Put numbers of one kind into an array; whole ones into the first of `integers` that can hold them."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        raise FormatError("a list with elements of different types")
    kind = kinds.pop()
    if issubclass(kind, int) and kind is not bool:
        return np.array(values, _integer_type(min(values), max(values), integers))
    return np.array(values, np.float32 if kind is float else kind)


def _integer_type(low: int, high: int, choices: tuple[str, ...]) -> str:
    for choice in choices:
        limits = np.iinfo(choice)
        if limits.min <= low and high <= limits.max:
            return choice
    raise FormatError(f"no integer type holds both {low} and {high}")


def _number_type(values: NDArray[Any]) -> ValueType:
    if values.dtype not in _TYPE_OF_DTYPE:
        raise FormatError(f"GGUF has no value type for {values.dtype}")
    return _TYPE_OF_DTYPE[values.dtype]


def _text(text: str) -> bytes:
    try:
        return _prefixed(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise FormatError(f"{text!r} cannot be written as UTF-8: {error.reason}") from None


def _prefixed(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _pad(file: BinaryIO, alignment: int) -> None:
    position = file.tell()
    file.write(bytes(align_up(position, alignment) - position))


def _write_tensor(file: BinaryIO, name: str, tensor: LazyTensor) -> None:
    begin = file.tell()
    for chunk in tensor.chunks():
        file.write(np.ascontiguousarray(chunk).data)
    written = file.tell() - begin
    if written != tensor.nbytes:
        raise FormatError(f"tensor {name!r} takes {tensor.nbytes} bytes, but {written} were given")


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Give a new file that replaces `path` at the end, or disappears after an error."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
