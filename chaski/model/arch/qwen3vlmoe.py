"""Qwen 3-VL with experts, text (Bai et al. 2025): as the dense one, with the experts of Qwen 3."""

from __future__ import annotations

from chaski.model.arch import qwen3moe, qwen3vl


class Model(qwen3vl.Model, qwen3moe.Model):
    """The layers are those of `qwen3moe`."""
