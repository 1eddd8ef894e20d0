"""Tiny drafts that read hidden states of their targets, with these targets."""

from __future__ import annotations

from pathlib import Path

from chaski.convert.convert import convert

__all__ = ["DRAFTS", "EAGLE3", "TARGETS", "write_pair"]

_DATA = Path(__file__).parent / "data"
DRAFTS = _DATA / "drafts"
TARGETS = {"qwen3": DRAFTS / "qwen3-target", "qwen35": _DATA / "checkpoints" / "qwen35"}
"""The checkpoint that each DFlash draft was trained for."""
EAGLE3 = dict.fromkeys(("eagle3", "eagle3-speculators"), TARGETS["qwen3"])
"""Those of EAGLE-3 drafts."""


def write_pair(name: str, target: Path, draft: Path) -> None:
    """Write the files of a DFlash draft and of its target, in F32."""
    convert(TARGETS[name], target, "F32")
    convert(DRAFTS / name, draft, "F32", target=TARGETS[name])
