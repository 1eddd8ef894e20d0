"""Qwen 3.5 with experts (Qwen Team 2026)."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.convert.families import qwen35

FAMILY = replace(qwen35.FAMILY, architecture="qwen35moe")
CHECKPOINTS = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
