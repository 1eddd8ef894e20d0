"""Qwen 3-VL with experts, text (Bai et al. 2025): Qwen 3-VL with Qwen 3's experts."""

from __future__ import annotations

from chaski.model.arch import qwen3moe, qwen3vl
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "qwen3vlmoe",
    "Qwen 3-VL with experts",
    tools=("qwen3",),
    thinking=("qwen3", "qwen3-thinking"),
    notes="Pictures and videos as in `qwen3vl`. Experts are converted from the layout of published "
    "checkpoints, which transformers 5 does not save.",
)


class Model(qwen3vl.Model, qwen3moe.Model):
    """Qwen 3-VL with the layers of `qwen3moe`."""
