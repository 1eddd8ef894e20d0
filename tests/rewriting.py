"""Tensors of GGUF files as they are, for files that are written again with a change."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile, TensorInfo
from chaski.formats.gguf_writer import LazyTensor
from chaski.formats.quant import QuantType

__all__ = ["all_tensors", "bytes_as", "unchanged"]


def all_tensors(file: GGUFFile) -> dict[str, LazyTensor]:
    """Every tensor of a file, by name."""
    return {name: unchanged(info) for name, info in file.tensors.items()}


def unchanged(info: TensorInfo) -> LazyTensor:
    return LazyTensor(info.shape, info.type, partial(_bytes, info))


def bytes_as(data: npt.NDArray[np.uint8], type: QuantType, shape: tuple[int, ...]) -> LazyTensor:
    """A tensor of these bytes."""
    return LazyTensor(shape, type, lambda: [data])


def _bytes(info: TensorInfo) -> list[npt.NDArray[np.uint8]]:
    return [info.data]
