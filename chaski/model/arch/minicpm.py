"""MiniCPM 1, 2 and 4 (Hu et al. 2024): Granite's factors on every added term, and LongRoPE."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import granite
from chaski.model.architecture import Architecture
from chaski.model.longrope import LongRopeModel

_FACTORS = ("embedding_scale", "logit_scale", "residual_scale")

ARCHITECTURE = Architecture("minicpm", "MiniCPM 1, 2 and 4", reads=_FACTORS)


class Model(LongRopeModel, granite.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        for name in _FACTORS:
            file.get(f"{file.architecture}.{name}", float)  # the first files have none; they are refused
        super().__init__(file, projector)
