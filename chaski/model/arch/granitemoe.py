"""Granite 3 with experts (Granite Team 2024); `granite.py` computes both."""

from chaski.model.arch.granite import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "granitemoe",
    "Granite 3 with experts",
    tools=("granite",),
    reads=("attention.scale", "embedding_scale", "logit_scale", "residual_scale"),
)
