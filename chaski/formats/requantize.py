"""`requantize`: a GGUF file again, its matrices in smaller types, as llama.cpp's mixtures choose them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import UnsupportedError
from chaski.formats.file_types import FILE_TYPES
from chaski.formats.gguf import GGUFFile
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType, row_bytes
from chaski.formats.quantize import quantize

__all__ = ["MIXTURES", "merge", "requantize"]

_ELEMENTS_AT_ONCE = 1 << 20
_FLOATS = (QuantType.F32, QuantType.F16, QuantType.BF16)
_LAYER = re.compile(r"blk\.(\d+)\.")
# Encoders of images and what joins them to the text: small, and they suffer from fewer bits.
_VISION = ("v.", "mm.")
_NUMBERS = {name: number for number, name in FILE_TYPES.items()}


ElementProgress: TypeAlias = Callable[[int, int], None]
"""Called with the elements that are done, and those of all tensors."""


def _untold(done: int, total: int) -> None:
    """Progress that is ignored."""


class _Mixture(Struct, frozen=True):
    """Types of the matrices. `better` is for values and down projections in the most important layers."""

    usual: QuantType
    output: QuantType
    better: QuantType | None = None


MIXTURES = {
    "F32": _Mixture(QuantType.F32, QuantType.F32),
    "F16": _Mixture(QuantType.F16, QuantType.F16),
    "BF16": _Mixture(QuantType.BF16, QuantType.BF16),
    "Q8_0": _Mixture(QuantType.Q8_0, QuantType.Q8_0),
    "Q6_K": _Mixture(QuantType.Q6_K, QuantType.Q6_K),
    "Q5_K_M": _Mixture(QuantType.Q5_K, QuantType.Q6_K, QuantType.Q6_K),
    "Q5_K_S": _Mixture(QuantType.Q5_K, QuantType.Q6_K),
    "Q4_K_M": _Mixture(QuantType.Q4_K, QuantType.Q6_K, QuantType.Q6_K),
    "Q4_K_S": _Mixture(QuantType.Q4_K, QuantType.Q6_K),
    "Q4_0": _Mixture(QuantType.Q4_0, QuantType.Q6_K),
}
"""The mixtures by name. Vectors, norms, routers and encoders of images always keep their type."""


def requantize(file: GGUFFile, path: Path, mixture: str, progress: ElementProgress = _untold) -> None:
    """Write the tensors of `file` to `path` in the types of a mixture.

    Raises UnsupportedError for an unknown mixture, and for a file that is quantized already.
    """
    if mixture not in MIXTURES:
        known = ", ".join(MIXTURES)
        raise UnsupportedError(f"unsupported quantization type {mixture} - supported types are {known}")
    if any(tensor.type not in _FLOATS for tensor in file.tensors.values() if len(tensor.shape) > 1):
        raise UnsupportedError("quantization is only supported for F16, BF16 and F32 models")
    count = _Count(file, progress)
    layers = 1 + max((_layer(name) for name in file.tensors), default=0)
    is_tied = "output.weight" not in file.tensors
    tensors = {
        name: _converted(tensor, _type(tensor, MIXTURES[mixture], layers, is_tied), count)
        for name, tensor in file.tensors.items()
    }
    write_gguf(path, _metadata(file) | {"general.file_type": np.uint32(_NUMBERS[mixture])}, tensors)


def merge(file: GGUFFile, path: Path, progress: ElementProgress = _untold) -> None:
    """Write all parts of a split file as one; nothing else changes."""
    count = _Count(file, progress)
    tensors = {name: _converted(tensor, tensor.type, count) for name, tensor in file.tensors.items()}
    write_gguf(path, _metadata(file), tensors)


def _metadata(file: GGUFFile) -> dict[str, Any]:
    return {key: value for key, value in file.metadata.items() if not key.startswith("split.")}


def _type(tensor: TensorInfo, mixture: _Mixture, layers: int, is_tied: bool) -> QuantType:
    if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or "_norm" in tensor.name:
        return tensor.type
    if tensor.name.startswith(_VISION):
        return tensor.type
    if "ffn_gate_inp" in tensor.name or tensor.shape[-1] % QuantType.Q8_0.block_size:
        return tensor.type
    wanted = _wanted(tensor.name, mixture, layers, is_tied)
    # Q8_0 takes any row that is left, and loses the least.
    return QuantType.Q8_0 if tensor.shape[-1] % wanted.block_size else wanted


def _wanted(name: str, mixture: _Mixture, layers: int, is_tied: bool) -> QuantType:
    if name == "output.weight" or (is_tied and name == "token_embd.weight"):
        return mixture.output
    is_sensitive = "attn_v." in name or "ffn_down" in name
    if mixture.better and is_sensitive and _gets_more_bits(_layer(name), layers):
        return mixture.better
    return mixture.usual


def _gets_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and each third one between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else 0


class _Count:
    """Bytes of the source that are done."""

    def __init__(self, file: GGUFFile, progress: ElementProgress) -> None:
        self._total = sum(tensor.nbytes for tensor in file.tensors.values())
        self._progress = progress
        self._done = 0

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._progress(self._done, self._total)


def _converted(tensor: TensorInfo, type: QuantType, count: _Count) -> LazyTensor:
    return LazyTensor(tensor.shape, type, partial(_chunks, tensor, type, count))


def _chunks(tensor: TensorInfo, type: QuantType, count: _Count) -> Iterator[NDArray[np.uint8]]:
    """The tensor's bytes in another type, some rows at a time."""
    columns = tensor.shape[-1]
    rows = tensor.data.reshape(-1, row_bytes(tensor.type, columns))
    step = max(1, _ELEMENTS_AT_ONCE // columns)
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        if type is tensor.type:
            yield part
        else:
            yield quantize(part.view(tensor.type.layout), type)
        count.add(part.nbytes)
