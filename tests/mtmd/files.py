"""Tiny models in llama.cpp's form: a text model, and a projector with float32 weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chaski.convert.convert import convert
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.tiny_vision import DATA, write_projector, write_text_part
from tests.vision_oracle import F32

__all__ = ["Projector", "text_and_projector"]

_CHECKPOINTS = DATA.parent
_TEXT = {"qwen25vl": "qwen2vl"}  # a name of Ollama's, which llama.cpp does not know


@dataclass
class Projector:
    """Metadata and tensors of a projector, to be changed."""

    metadata: dict[str, Any]
    tensors: dict[str, F32]

    @classmethod
    def read(cls, path: Path) -> Projector:
        with open_gguf(path) as file:
            tensors = {
                name: np.array(dequantize(info.data, info.type, info.shape))
                for name, info in file.tensors.items()
            }
            return cls(dict(file.metadata), tensors)

    def write(self, path: Path) -> Path:
        metadata = dict(self.metadata)
        version = "clip.minicpmv_version"  # the reader does not distinguish signed numbers
        if version in metadata:
            metadata[version] = np.int32(metadata[version])
        write_gguf(path, metadata, {name: (array, QuantType.F32) for name, array in self.tensors.items()})
        return path


def text_and_projector(name: str, folder: Path) -> tuple[Path, Projector]:
    """Return the text model of a tiny vision model without its encoder, and its projector."""
    text, projector = folder / "text.gguf", folder / "mmproj.gguf"
    for checkpoint in (_CHECKPOINTS / "tiled" / name, _CHECKPOINTS / name):
        if checkpoint.is_dir():
            convert(checkpoint, text, "F32", projector=projector)
            return text, Projector.read(projector)
    write_text_part(DATA / f"{_TEXT.get(name, name)}.gguf", text)
    given = DATA / f"{name}-mmproj.gguf"
    return text, Projector.read(
        given if given.exists() else write_projector(DATA / f"{name}.gguf", projector)
    )
