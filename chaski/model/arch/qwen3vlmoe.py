"""Qwen 3-VL with experts, text (Bai et al. 2025): Qwen 3-VL with Qwen 3's experts."""

from __future__ import annotations

from chaski.model.arch import qwen3moe, qwen3vl


class Model(qwen3vl.Model, qwen3moe.Model):
    """Qwen 3-VL with the layers of `qwen3moe`."""
