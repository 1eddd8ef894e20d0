"""Maincoder (Maincode 2025): Llama, with norms of heads after their rope."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.ml.graph import Rope
from chaski.model.arch import hunyuan_dense
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "maincoder",
    "Maincoder 1B",
    notes="A context does not shift, because stored keys are normalized after their rotation.",
)


class Model(hunyuan_dense.Model):
    def rope(self) -> Rope:
        return replace(super().rope(), neox=False)
