"""Qwen 3.5 with experts (Qwen Team 2026); `qwen35.py` computes both."""

from chaski.model.arch.qwen35 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "qwen35moe",
    "Qwen 3.5 with experts",
    tools=("qwen3.5",),
    thinking=("qwen3.5",),
    notes="Pictures and videos, each of at most half of the context.",
    reads=("full_attention_interval", "nextn_predict_layers"),
    fixed={"attention.causal": (True,)},
)
