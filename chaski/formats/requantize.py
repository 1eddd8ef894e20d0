"""`requantize`: a GGUF file again with its tensors in other types, as a mixture chooses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from chaski.errors import FormatError, OptionError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile
from chaski.formats.gguf_parts import write_in_parts
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.importance import ImportanceMatrix
from chaski.formats.mixture import MIXTURES, PLAIN, Mixture, Sizes, Wishes, find_mixture
from chaski.formats.quant import Floats, QuantType, row_bytes
from chaski.formats.quantize import quantize

__all__ = ["ElementProgress", "Plan", "check_is_float", "merge", "plan_types", "requantize"]

_ELEMENTS_AT_ONCE = 1 << 20
_QUANTIZATION_VERSION = 2

ElementProgress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes of the source that are done, and those of all tensors."""


def _untold(done: int, total: int) -> None:
    """Progress that is ignored."""


class Plan(Struct, frozen=True):
    """The types of all tensors of a file that is to be written."""

    mixture: Mixture
    types: Mapping[str, QuantType]
    importance: ImportanceMatrix | None = None

    def sizes(self, file: GGUFFile) -> dict[str, int]:
        """Return the bytes of each tensor in its new type."""
        return {
            name: row_bytes(self.types[name], tensor.shape[-1]) * math.prod(tensor.shape[:-1])
            for name, tensor in file.tensors.items()
        }

    def notes(self, file: GGUFFile) -> list[str]:
        """Return sentences about losses that the user may not expect."""
        changed = [tensor for name, tensor in file.tensors.items() if self.types[name] is not tensor.type]
        lossy = [tensor for tensor in changed if self.types[tensor.name] not in PLAIN]
        again = {tensor.type.name for tensor in lossy} - {type.name for type in (*PLAIN, QuantType.Q8_0)}
        notes = []
        if again:
            notes.append(
                f"Tensors of {', '.join(sorted(again))} were quantized again, which loses more than "
                "quantizing the original; use a file of F16, BF16 or Q8_0 if there is one."
            )
        if self.importance is not None:
            of = self.importance.of
            in_layers = [tensor for tensor in changed if tensor.name.startswith("blk.")]
            missing = [tensor.name for tensor in in_layers if of(tensor.name, tensor.shape) is None]
            if missing:
                notes.append(
                    f"{self.importance.path} has no importance of {len(missing)} tensors, such as "
                    f"{missing[0]}."
                )
        return notes


def check_is_float(file: GGUFFile, mixture: str) -> None:
    """Raise UnsupportedError for an unknown mixture, and for a file that is quantized already."""
    if mixture not in MIXTURES:
        known = ", ".join(MIXTURES)
        raise UnsupportedError(f"unsupported quantization type {mixture} - supported types are {known}")
    if any(tensor.type not in PLAIN for tensor in file.tensors.values() if len(tensor.shape) > 1):
        raise UnsupportedError("quantization is only supported for F16, BF16 and F32 models")


def plan_types(
    file: GGUFFile, mixture: str, wishes: Wishes | None = None, importance: ImportanceMatrix | None = None
) -> Plan:
    """Choose the type of each tensor, before anything is written.

    Raises OptionError for an unknown mixture, for one that needs an importance matrix which is missing or
    lacks a tensor, and for a matrix that was made with another model.
    """
    found = find_mixture(mixture)
    wishes = replace(wishes or Wishes(), has_importance=importance is not None)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    chosen = found.choose(shapes, Sizes.of(file.metadata), wishes)
    types = {name: chosen.get(name, tensor.type) for name, tensor in file.tensors.items()}
    for name, type in chosen.items():
        tensor = file.tensors[name]
        row = None if importance is None else importance.of(name, tensor.shape)
        if row is None and type is not tensor.type and found.needs_importance(name, type):
            raise OptionError(
                f"{name} as {type.name} needs an importance matrix"
                + (" with this tensor" if importance is not None else "")
                + "; make one with `chaski imatrix` and give it with --imatrix"
            )
    return Plan(found, types, importance)


def requantize(file: GGUFFile, path: Path, plan: Plan, progress: ElementProgress = _untold) -> None:
    """Write the tensors of `file` to `path` in the types of a plan; `path` appears once it is complete.

    No more than a million elements are in memory as floats. Raises FormatError for values that a type cannot
    hold, with the name of the tensor.
    """
    count = _Count(file, progress)
    tensors = {
        name: _converted(tensor, plan.types[name], count, plan.importance)
        for name, tensor in file.tensors.items()
    }
    metadata = _metadata(file) | {
        "general.quantization_version": np.uint32(_QUANTIZATION_VERSION),
        "general.file_type": np.uint32(plan.mixture.number),
    }
    if plan.importance is not None:
        metadata |= plan.importance.note
    write_gguf(path, metadata, tensors)


def merge(
    file: GGUFFile, path: Path, progress: ElementProgress = _untold, split_max_size: int | None = None
) -> list[Path]:
    """Write all parts of a split file as one, or in other parts; nothing else changes.

    Returns what `write_in_parts` does with `split_max_size`.
    """
    count = _Count(file, progress)
    tensors = {name: _converted(tensor, tensor.type, count) for name, tensor in file.tensors.items()}
    return write_in_parts(path, _metadata(file), tensors, split_max_size)


def _metadata(file: GGUFFile) -> dict[str, Any]:
    return {key: value for key, value in file.metadata.items() if not key.startswith("split.")}


class _Count:
    """Bytes of the source that are done."""

    def __init__(self, file: GGUFFile, progress: ElementProgress) -> None:
        self._total = sum(tensor.nbytes for tensor in file.tensors.values())
        self._progress = progress
        self._done = 0

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._progress(self._done, self._total)


def _converted(
    tensor: TensorInfo, type: QuantType, count: _Count, importance: ImportanceMatrix | None = None
) -> LazyTensor:
    row = None
    if importance is not None and type is not tensor.type:
        row = importance.of(tensor.name, tensor.shape)
    return LazyTensor(tensor.shape, type, partial(_chunks, tensor, type, count, row))


def _chunks(
    tensor: TensorInfo, type: QuantType, count: _Count, importance: Floats | None
) -> Iterator[NDArray[np.uint8]]:
    """The tensor's bytes in another type, some rows of one matrix at a time."""
    columns = tensor.shape[-1]
    rows = tensor.data.reshape(-1, row_bytes(tensor.type, columns))
    of_matrix = len(rows) if importance is None else len(rows) // len(importance)
    step = max(1, _ELEMENTS_AT_ONCE // columns)
    for matrix in range(len(rows) // of_matrix):
        for begin in range(matrix * of_matrix, (matrix + 1) * of_matrix, step):
            part = rows[begin : min(begin + step, (matrix + 1) * of_matrix)]
            if type is tensor.type:
                yield part
            else:
                row = None if importance is None else importance[matrix]
                yield _quantized(tensor, part, type, row)
            count.add(part.nbytes)


def _quantized(
    tensor: TensorInfo, part: NDArray[np.uint8], type: QuantType, importance: Floats | None
) -> NDArray[np.uint8]:
    if tensor.type in PLAIN:
        values = part.view(tensor.type.layout)
    else:
        values = dequantize(part, tensor.type, (len(part), tensor.shape[-1]))
    try:
        return quantize(values, type, importance=importance)
    except FormatError as error:
        raise FormatError(f"tensor {tensor.name!r}: {error}") from None
