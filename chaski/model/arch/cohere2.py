"""Command R7B and Command A (Cohere 2024, 2025): windows with a rope, and layers that see all without one."""

from __future__ import annotations

from chaski.ml.graph import Rope
from chaski.model.arch import command_r
from chaski.model.architecture import Architecture
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "cohere2",
    "Command R7B, Command A",
    tools=("cohere",),
    thinking=("cohere",),
    reads=("attention.sliding_window", "logit_scale"),
)


class Model(command_r.Model):
    def far_rope(self) -> Rope:
        return NO_ROPE
