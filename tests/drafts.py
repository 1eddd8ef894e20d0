"""Tiny drafts that read hidden states of their targets, with these targets."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DRAFTS", "TARGETS"]

_DATA = Path(__file__).parent / "data"
DRAFTS = _DATA / "drafts"
TARGETS = {"qwen3": DRAFTS / "qwen3-target", "qwen35": _DATA / "checkpoints" / "qwen35"}
"""The checkpoint that each draft was trained for."""
