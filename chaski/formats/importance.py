"""Importance matrices: how much each column of each matrix of a model counts, measured on a text.

The importance of a column is the mean square of the input element that it multiplies. Files have the format
of llama.cpp's `llama-imatrix`: GGUF, with two tensors for each matrix, `NAME.in_sum2` (the sums of squares, a
row for each expert) and `NAME.counts` (the rows of input that were added, for each expert). Its earlier
format, with the extension `.dat`, is read as well.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import FormatError, ModelNotFoundError, OptionError
from chaski.formats.gguf import MAGIC, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import Floats, QuantType

__all__ = ["Entry", "ImportanceMatrix", "read_importance", "write_importance"]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS, _CHUNKS, _CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_MOST_ENTRIES, _LONGEST_NAME = 1 << 20, 1 << 16


class Entry(Struct):
    """The sums of squares of a matrix's inputs, (matrices, columns), and the added rows, (matrices,).

    A matrix of experts has one row for each. For a matrix used with one kind of input, `counts` may have one
    element for all rows.
    """

    sums: Floats
    counts: NDArray[np.float32]


class ImportanceMatrix(Struct):
    """Entries by the names of tensors.

    datasets: the names of the texts. chunk_size: the tokens of a chunk of text; 0 if the file does not say.
    """

    path: Path
    entries: dict[str, Entry]
    datasets: list[str]
    chunk_count: int = 0
    chunk_size: int = 0

    def of(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """Return the mean squares for a tensor, (matrices, columns), or None without any.

        Experts that no token reached count alike in all columns. Raises OptionError if the sizes differ, as
        those of another model do.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        matrices = int(np.prod(shape[:-2]))
        if entry.sums.size != matrices * shape[-1]:
            if name == "token_embd.weight":  # its rows are looked up; a tied output may have another size
                return None
            raise OptionError(
                f"{self.path}: {name} has {entry.sums.size} columns, but {matrices * shape[-1]} in the "
                "model; the importance matrix was made with another model"
            )
        counts = np.broadcast_to(entry.counts, matrices)[:, None]
        sums = entry.sums.reshape(matrices, shape[-1])
        means = np.divide(sums, counts, out=np.ones_like(sums), where=counts > 0)
        return means if means.any() else np.ones_like(means)

    @property
    def note(self) -> Mapping[str, Any]:
        """The metadata by which a quantized file names its importance matrix, under llama.cpp's keys."""
        dataset = {"quantize.imatrix.dataset": self.datasets[0]} if self.datasets else {}
        return {
            "quantize.imatrix.file": str(self.path),
            **dataset,
            "quantize.imatrix.entries_count": np.int32(len(self.entries)),
            "quantize.imatrix.chunks_count": np.int32(self.chunk_count),
        }


def read_importance(path: Path) -> ImportanceMatrix:
    """Read an importance matrix of either format.

    Raises ModelNotFoundError without such a file, and FormatError for one that is not an importance matrix.
    """
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelNotFoundError(f"{path}: {error.strerror or error}") from None
    found = _read_gguf(path) if is_gguf else _read_legacy(path)
    for name, entry in found.entries.items():
        if not np.isfinite(entry.sums).all() or entry.sums.min(initial=0) < 0:
            raise FormatError(f"{path}: {name} has sums of squares that are not finite or below zero")
    return found


def write_importance(matrix: ImportanceMatrix) -> None:
    """Write an importance matrix to its path, as GGUF; the file appears once it is complete."""
    tensors: dict[str, tuple[NDArray[np.floating[Any]], QuantType]] = {}
    for name, entry in sorted(matrix.entries.items()):
        tensors[name + _SUMS] = (entry.sums, QuantType.F32)
        tensors[name + _COUNTS] = (entry.counts.reshape(-1, 1).astype(np.float32), QuantType.F32)
    metadata: dict[str, Any] = {
        "general.type": "imatrix",
        _DATASETS: matrix.datasets,
        _CHUNKS: np.uint32(matrix.chunk_count),
        _CHUNK_SIZE: np.uint32(matrix.chunk_size),
    }
    write_gguf(matrix.path, metadata, tensors)


def _read_gguf(path: Path) -> ImportanceMatrix:
    with open_gguf(path) as file:
        entries = {}
        for name, tensor in file.tensors.items():
            if not name.endswith(_SUMS):
                continue
            counts = file.tensors.get(name.removesuffix(_SUMS) + _COUNTS)
            if counts is None or {tensor.type, counts.type} != {QuantType.F32}:
                raise FormatError(f"{path}: {name} has no counts, or is not of F32")
            columns = tensor.shape[-1]
            sums = tensor.data.reshape(-1).view("<f4").reshape(-1, columns).copy()
            rows = counts.data.reshape(-1).view("<f4").copy()
            if len(rows) not in (1, len(sums)):
                raise FormatError(f"{path}: {name} has {len(sums)} rows, but {len(rows)} counts")
            entries[name.removesuffix(_SUMS)] = Entry(sums, rows)
        if not entries:
            raise FormatError(f"{path} is not an importance matrix: no tensor is called NAME{_SUMS}")
        datasets = list(file.get(_DATASETS, list[str], ()))
        return ImportanceMatrix(
            path, entries, datasets, file.get(_CHUNKS, int, 0), file.get(_CHUNK_SIZE, int, 0)
        )


def _read_legacy(path: Path) -> ImportanceMatrix:
    """Read the earlier format, whose sums are means times a number of calls, the same for all experts."""
    data, offset = path.read_bytes(), 0

    def number(most: int) -> int:
        nonlocal offset
        if offset + 4 > len(data):
            raise FormatError(
                f"{path} is not an importance matrix: it ends at byte {len(data)}, inside an entry"
            )
        (value,) = struct.unpack_from("<i", data, offset)
        if not 0 <= value <= most:
            raise FormatError(
                f"{path} is not an importance matrix: byte {offset} begins with the count {value}"
            )
        offset += 4
        return int(value)

    def take(size: int) -> bytes:
        nonlocal offset
        if offset + size > len(data):
            raise FormatError(
                f"{path} is not an importance matrix: it ends at byte {len(data)}, inside an entry"
            )
        offset += size
        return data[offset - size : offset]

    entries = {}
    for _ in range(number(_MOST_ENTRIES)):
        name = take(number(_LONGEST_NAME)).decode("utf-8", "replace")
        calls, size = number(2**31 - 1), number(2**31 - 1)
        sums = np.frombuffer(take(4 * size), "<f4").reshape(1, size)
        entries[name] = Entry(sums.copy(), np.full(1, max(calls, 1), np.float32))
    if not entries:
        raise FormatError(f"{path} is not an importance matrix: it has no entry")
    if offset == len(data):
        return ImportanceMatrix(path, entries, [])
    chunks = number(2**31 - 1)
    dataset = take(number(_LONGEST_NAME)).decode("utf-8", "replace")
    return ImportanceMatrix(path, entries, [dataset] if dataset else [], chunks)
