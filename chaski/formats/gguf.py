"""Reads GGUF files, versions 2 and 3: metadata, tensor table, and the tensors' bytes in place.

A file is mapped into memory, never copied, and every fault in it is found when it is opened.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import formatannotation
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from chaski.errors import GGUFError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf_metadata import Cursor, GGUFValue, MetadataReader, kind_name
from chaski.formats.gguf_tensors import (
    ALIGNMENTS,
    DEFAULT_ALIGNMENT,
    TensorInfo,
    is_alignment,
    read_entries,
    read_tensors,
)
from chaski.formats.mapped import map_file
from chaski.formats.recognized import HEAD_BYTES, recognized
from chaski.formats.string_array import StringArray

__all__ = [
    "GGUFFile",
    "GGUFValue",
    "StringArray",
    "TensorInfo",
    "has_whole_header",
    "open_gguf",
    "open_inside",
    "part_paths",
]

MAGIC = b"GGUF"
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_REQUIRED: Final = object()

T = TypeVar("T", int, float, bool, str)
N = TypeVar("N", int, float, bool)
D = TypeVar("D")


class GGUFFile:
    """An open GGUF file, or all parts of a split one.

    metadata: scalars are int, float, bool or str; arrays of numbers are read-only NumPy views of the map, not
    always aligned; arrays of strings are `StringArray`; arrays of arrays are tuples.
    tensors: by name, in file order.
    """

    def __init__(self, path: Path, metadata: dict[str, GGUFValue], tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self._metadata = metadata
        self._tensors = tensors

    @property
    def metadata(self) -> Mapping[str, GGUFValue]:
        return MappingProxyType(self._metadata)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return MappingProxyType(self._tensors)

    @property
    def architecture(self) -> str:
        """The model family, `general.architecture`."""
        return self.get("general.architecture", str)

    @cached_property
    def num_weights(self) -> int:
        """The number of elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    @overload
    def get(self, key: str, kind: type[list[str]]) -> StringArray: ...
    @overload
    def get(self, key: str, kind: type[list[str]], default: D) -> StringArray | D: ...
    @overload
    def get(self, key: str, kind: type[list[N]]) -> NDArray[Any]: ...
    @overload
    def get(self, key: str, kind: type[list[N]], default: D) -> NDArray[Any] | D: ...
    def get(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """Return the value of `key` if it has exactly that kind; nothing is converted.

        kind: int, float, bool, str, or list[int], list[float], list[bool] for a NumPy array, list[str] for a
        StringArray. GGUFError when the value has another kind, or is missing and there is no default.
        """
        return _lookup(self.path, self._metadata, key, kind, default)

    def close(self) -> None:
        """Forget metadata and tensors; the map goes away with the last array that shows a part of it."""
        self._metadata.clear()
        self._tensors.clear()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Part(NamedTuple):
    """The contents of one file."""

    path: Path
    metadata: dict[str, GGUFValue]
    tensors: dict[str, TensorInfo]


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file; a split one by any of its parts, such as `NAME-00001-of-00003.gguf`.

    The metadata of a split file is that of its first part. Raises ModelNotFoundError without such a file,
    UnsupportedError for a valid file that this version cannot read, GGUFError for any other fault.
    """
    first = _read_part(Path(path))
    count = _lookup(first.path, first.metadata, "split.count", int, 1)
    if count <= 1:
        return GGUFFile(first.path, first.metadata, first.tensors)
    paths = part_paths(first.path)
    if len(paths) != count:
        raise GGUFError(
            f"{first.path}: by key 'split.count' this is one of {count} parts; they must be in one folder, "
            f"called NAME-00001-of-{count:05d}.gguf and so on"
        )
    first = _read_numbered(paths, 0)
    return GGUFFile(first.path, first.metadata, _join(first, paths))


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a split file by the name of any of them; of other files their own."""
    name = _PART_NAME.fullmatch(path.name)
    if name is None:
        return [path]
    count = name["count"]
    return [path.with_name(f"{name['stem']}-{i:05d}-of-{count}.gguf") for i in range(1, int(count) + 1)]


def has_whole_header(path: Path) -> bool:
    """Return whether a file with the first bytes of a GGUF file contains its metadata and tensor table."""
    try:
        cursor = Cursor(path, map_file(path, GGUFError))
        _check_magic(cursor)
        tensor_count, key_count = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
        MetadataReader(cursor).read(key_count)
        read_entries(cursor, tensor_count)
    except GGUFError:
        return False
    return True


def open_inside(path: str | Path, key: str) -> GGUFFile:
    """Open the GGUF file that is the value of a key of another one, an array of bytes.

    Raises what `open_gguf` does, and GGUFError if the array does not exist.
    """
    whole = Cursor(Path(path), map_file(Path(path), GGUFError))
    content: NDArray[Any] = _lookup(whole.path, _read(whole).metadata, key, list[int])
    if content.dtype != np.uint8:
        raise GGUFError(f"{path}: key {key!r} is an array of {content.dtype}, not of bytes")
    begin = content.ctypes.data - whole.data.ctypes.data
    part = _read(Cursor(whole.path, whole.data[: begin + content.size], begin))
    return GGUFFile(part.path, part.metadata, part.tensors)


def _read_part(path: Path) -> _Part:
    return _read(Cursor(path, map_file(path, GGUFError)))


def _read(cursor: Cursor) -> _Part:
    _check_magic(cursor)
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.u64("the number of keys")
    metadata = MetadataReader(cursor).read(key_count)
    tensors = read_tensors(cursor, tensor_count, _alignment(cursor.path, metadata))
    return _Part(cursor.path, metadata, tensors)


def _check_magic(cursor: Cursor) -> None:
    head = bytes(cursor.view[cursor.begin : cursor.begin + HEAD_BYTES])
    if not head.startswith(MAGIC) and (what := recognized(head)):
        raise GGUFError(f"{cursor.path}: not a GGUF file: it is {what}")
    begin = cursor.skip(4, "the magic number")
    magic = bytes(cursor.view[begin : cursor.offset])
    if magic != MAGIC:
        raise cursor.error(f"not a GGUF file: it begins with {magic!r}", begin)
    version = cursor.u32("the version")
    if version in (2 << 24, 3 << 24):
        raise cursor.error("big-endian files are not supported; convert it to little-endian", begin + 4)
    if version not in (2, 3):
        problem = f"version {version} is not supported; 2 and 3 are"
        raise cursor.error(problem, begin + 4, UnsupportedError)


def _alignment(path: Path, metadata: dict[str, GGUFValue]) -> int:
    alignment: int = _lookup(path, metadata, "general.alignment", int, DEFAULT_ALIGNMENT)
    if not is_alignment(alignment):
        raise GGUFError(f"{path}: key 'general.alignment' is {alignment}; {ALIGNMENTS} are allowed")
    return alignment


def _join(first: _Part, paths: Sequence[Path]) -> dict[str, TensorInfo]:
    """Open the other parts of a split file and return the tensors of all."""
    tensors: dict[str, TensorInfo] = {}
    for number in range(len(paths)):
        part = _read_numbered(paths, number) if number else first
        _check_part(part, number, len(paths))
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise GGUFError(f"{part.path}: tensor {min(twice)!r} is in an earlier part too")
        tensors |= part.tensors
    wanted = _lookup(first.path, first.metadata, "split.tensors.count", int)
    if len(tensors) != wanted:
        raise GGUFError(f"{first.path}: 'split.tensors.count' is {wanted}, the parts hold {len(tensors)}")
    return tensors


def _read_numbered(paths: Sequence[Path], number: int) -> _Part:
    try:
        return _read_part(paths[number])
    except ModelNotFoundError:
        raise GGUFError(
            f"{paths[0].parent}: part {number + 1} of {len(paths)} is missing: {paths[number].name}"
        ) from None


def _check_part(part: _Part, number: int, count: int) -> None:
    for key, wanted in (("split.no", number), ("split.count", count)):
        found = _lookup(part.path, part.metadata, key, int)
        if found != wanted:
            raise GGUFError(f"{part.path}: key {key!r} is {found}, not {wanted}")


def _lookup(
    path: Path, metadata: Mapping[str, GGUFValue], key: str, kind: Any, default: Any = _REQUIRED
) -> Any:
    if key not in metadata:
        if default is _REQUIRED:
            raise GGUFError(f"{path}: key {key!r} is missing")
        return default
    value = metadata[key]
    found, wanted = kind_name(value), formatannotation(kind)
    if found != wanted:
        raise GGUFError(f"{path}: key {key!r} is {found}, not {wanted}")
    return value
