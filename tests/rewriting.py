"""Unchanged tensors of GGUF files, for files that are written again with a change."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile, TensorInfo, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["all_tensors", "bytes_as", "unchanged", "write_split"]


def all_tensors(file: GGUFFile) -> dict[str, LazyTensor]:
    """Return every tensor of a file by name."""
    return {name: unchanged(info) for name, info in file.tensors.items()}


def write_split(source: Path, folder: Path, count: int = 3) -> list[Path]:
    """Write a GGUF file again in parts, with the names and numbers of llama.cpp's `gguf-split`."""
    with open_gguf(source) as file:
        tensors = list(all_tensors(file).items())
        paths = []
        for number in range(count):
            keys: dict[str, Any] = {
                "split.no": np.uint16(number),
                "split.count": np.uint16(count),
                "split.tensors.count": np.int32(len(tensors)),
            }
            paths.append(folder / f"{source.stem}-{number + 1:05d}-of-{count:05d}.gguf")
            metadata: dict[str, Any] = {**({} if number else file.metadata), **keys}
            write_gguf(paths[-1], metadata, dict(tensors[number::count]))
    return paths


def unchanged(info: TensorInfo) -> LazyTensor:
    return LazyTensor(info.shape, info.type, partial(_bytes, info))


def bytes_as(data: npt.NDArray[np.uint8], type: QuantType, shape: tuple[int, ...]) -> LazyTensor:
    """Return a tensor with these bytes."""
    return LazyTensor(shape, type, lambda: [data])


def _bytes(info: TensorInfo) -> list[npt.NDArray[np.uint8]]:
    return [info.data]
