"""Reads safetensors files: one, or the shards that an index names. The bytes stay in the mapped file.

A header is checked whole when a file is opened: after that every tensor lies inside the file, apart from the
others, and has as many bytes as its shape and type ask for.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import FormatError, ModelNotFoundError, UnsupportedError
from chaski.formats.bounded_json import TooManyValuesError, require_few_values
from chaski.formats.mapped import map_file
from chaski.formats.recognized import HEAD_BYTES, recognized
from chaski.regular_files import open_regular

__all__ = ["INDEX_NAME", "SINGLE_NAME", "SafeTensor", "open_checkpoint", "open_safetensors"]

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# Far beyond any model, and low enough that a hostile header costs neither seconds nor memory.
MAX_HEADER_BYTES = 64 << 20
MAX_VALUES = 8_000_000
MAX_INDEX_BYTES = 64 << 20
MAX_DIMENSIONS = 8
MAX_SHARDS = 4096

BF16 = "BF16"
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    BF16: np.dtype("<u2"),  # the upper half of a float32
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
    # Bytes of numbers that mean nothing without scales.
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
}
# Other types of the format: rare numbers that need scales, and pairs.
_UNSUPPORTED = {
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "F6_E2M3",
    "F6_E3M2",
    "F4",
    "C64",
}
_FLOATS = ("F64", "F32", "F16", BF16)
_INTEGERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor: its description, and its elements as they lie in the file."""

    name: str
    dtype: str  # as the file names it
    shape: tuple[int, ...]
    path: Path
    # In `shape`, read-only, in the map; BF16 as uint16, F8 as uint8.
    data: NDArray[Any] = field(repr=False, compare=False)

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self.dtype in _INTEGERS


def open_checkpoint(folder: Path) -> dict[str, SafeTensor]:
    """All tensors of a folder: of `model.safetensors`, or of the shards in `model.safetensors.index.json`.

    Raises ModelNotFoundError when there is neither, FormatError when index and shards do not agree, and what
    `open_safetensors` raises.
    """
    index = folder / INDEX_NAME
    if index.exists():
        return _open_shards(folder, _read_index(index))
    if not (folder / SINGLE_NAME).exists():
        raise ModelNotFoundError(f"{folder}: no weights: neither {SINGLE_NAME} nor {INDEX_NAME} is there")
    return open_safetensors(folder / SINGLE_NAME)


def open_safetensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of one file by name, in the order of the file.

    Raises UnsupportedError for element types that mean nothing by themselves, FormatError for every fault.
    """
    data = map_file(path)
    header, begin = _read_header(path, data)
    _check_notes(path, header.pop("__metadata__", {}))
    entries = [_read_entry(path, name, entry) for name, entry in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_coverage(path, entries, len(data) - begin)
    return {entry.name: entry.tensor(path, data[begin:]) for entry in entries}


class _Entry(Struct, frozen=True):
    """A row of the header; offsets count from its end."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def tensor(self, path: Path, section: NDArray[np.uint8]) -> SafeTensor:
        data = section[self.begin : self.end].view(_DTYPES[self.dtype]).reshape(self.shape)
        return SafeTensor(self.name, self.dtype, self.shape, path, data)


def _read_header(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """The table of tensors, and where it ends: a length of eight bytes, then a JSON object."""
    head = data[:HEAD_BYTES].tobytes()
    if head[8:9] != b"{" and (what := recognized(head)):
        raise FormatError(f"{path}: not a safetensors file: it is {what}")
    if len(data) < 8:
        raise FormatError(f"{path}: truncated: {len(data)} bytes are not a safetensors file")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"{path}: a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
    if 8 + length > len(data):
        raise FormatError(f"{path}: truncated: a header of {length} bytes, {len(data) - 8} are left")
    return _parse(path, data[8 : 8 + length].tobytes()), 8 + length


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        require_few_values(text, MAX_VALUES)
        # In UTF-8 only, in which the values were counted.
        value = json.loads(text.decode(), object_pairs_hook=_unique)
    # ValueError covers text that is not JSON, not UTF-8, or holds numbers of thousands of digits.
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise FormatError(f"{path}: the header cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: the header is not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} appears twice")
    return entries


def _check_notes(path: Path, notes: Any) -> None:
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise FormatError(f"{path}: '__metadata__' must map names to strings")


def _read_entry(path: Path, name: str, entry: Any) -> _Entry:
    what = f"{path}: tensor {name!r:.200}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{what} must have dtype, shape and data_offsets and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise FormatError(f"{what}: the shape {shape!r:.100} is not a list of up to {MAX_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{what}: the offsets {offsets!r:.100} are not a begin and an end")
    needed = math.prod(shape) * _dtype(what, dtype).itemsize
    if offsets[1] - offsets[0] != needed:
        held = offsets[1] - offsets[0]
        raise FormatError(f"{what}: {dtype} of shape {shape} takes {needed} bytes, not {held}")
    return _Entry(name, dtype, tuple(shape), *offsets)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _dtype(what: str, name: Any) -> np.dtype[Any]:
    if isinstance(name, str) and name in _UNSUPPORTED:
        raise UnsupportedError(f"{what} is {name}; no checkpoint with such elements is read")
    if not isinstance(name, str) or name not in _DTYPES:
        raise FormatError(f"{what} has the unknown type {name!r:.50}")
    return _DTYPES[name]


def _check_coverage(path: Path, entries: list[_Entry], size: int) -> None:
    """Tensors follow each other without gaps to the end of the file, as the format asks."""
    end = 0
    for entry in entries:
        if entry.begin != end:
            problem = "overlaps the one before it" if entry.begin < end else "leaves a gap before it"
            raise FormatError(f"{path}: tensor {entry.name!r:.200} begins at {entry.begin}: it {problem}")
        end = entry.end
    if end != size:
        problem = f"the tensors take {end} bytes, the file has {size} for them"
        raise FormatError(f"{path}: {'truncated: ' if end > size else ''}{problem}")


def _read_index(path: Path) -> dict[str, str]:
    """The file of each tensor."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_INDEX_BYTES:
        raise FormatError(f"{path}: more than {MAX_INDEX_BYTES} bytes")
    names = _parse(path, data).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise FormatError(f"{path}: 'weight_map' must name a file for each tensor")
    for name, shard in names.items():
        # A shard lies next to its index: a path that leads elsewhere is an attack.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise FormatError(f"{path}: the file {shard!r:.100} of tensor {name!r:.100} is not a plain name")
    return names


def _open_shards(folder: Path, index: dict[str, str]) -> dict[str, SafeTensor]:
    shards = sorted(set(index.values()))
    if len(shards) > MAX_SHARDS:
        raise FormatError(f"{folder / INDEX_NAME}: {len(shards)} files; at most {MAX_SHARDS} are read")
    tensors: dict[str, SafeTensor] = {}
    for shard in shards:
        found = open_safetensors(folder / shard)
        _check_shard(folder / shard, found, [name for name, where in index.items() if where == shard])
        tensors |= found
    return tensors


def _check_shard(path: Path, found: Iterable[str], listed: list[str]) -> None:
    """A shard holds what the index lists for it, so none is an old or a foreign file."""
    missing, extra = set(listed).difference(found), set(found).difference(listed)
    if missing:
        raise FormatError(f"{path}: tensor {min(missing)!r} of the index is not in this file")
    if extra:
        raise FormatError(f"{path}: tensor {min(extra)!r} is not listed for this file in the index")
