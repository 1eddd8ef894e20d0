"""Tiny drafts that read hidden states of their targets, and the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.rewriting import all_tensors

__all__ = ["DRAFTS", "EAGLE3", "TARGETS", "rewritten", "write_dspark", "write_pair"]

_DATA = Path(__file__).parent / "data"
DRAFTS = _DATA / "drafts"
TARGETS = {
    "qwen3": DRAFTS / "qwen3-target",
    "qwen3-second": DRAFTS / "qwen3-target",
    "qwen35": _DATA / "checkpoints" / "qwen35",
}
"""The target checkpoint of each DFlash draft."""
EAGLE3 = dict.fromkeys(("eagle3", "eagle3-speculators"), TARGETS["qwen3"])
"""The target checkpoints of EAGLE-3 drafts."""


def write_pair(name: str, target: Path, draft: Path) -> None:
    """Write the files of a DFlash draft and of its target, in F32."""
    convert(TARGETS[name], target, "F32")
    convert(DRAFTS / name, draft, "F32", target=TARGETS[name])


def rewritten(
    source: Path, path: Path, metadata: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> Path:
    """Write a file with changed metadata and tensors; None removes one."""
    with open_gguf(source) as file:
        entries = {**file.metadata, **(metadata or {})}
        held = all_tensors(file) | (tensors or {})
        write_gguf(
            path,
            {key: value for key, value in entries.items() if value is not None},
            {key: value for key, value in held.items() if value is not None},
        )
    return path


def write_dspark(
    dflash: Path, path: Path, *, from_anchor: bool, has_confidence: bool = True, rank: int = 6
) -> dict[str, np.ndarray]:
    """Write a DFlash draft with the tensors of DSpark; return these."""
    random = np.random.default_rng(4)
    with open_gguf(dflash) as file:
        size, vocab_size = file.get("dflash.embedding_length", int), 301
    heads = {
        "markov_w1.weight": random.standard_normal((vocab_size, rank)).astype(np.float32),
        "markov_w2.weight": random.standard_normal((vocab_size, rank)).astype(np.float32),
    }
    if has_confidence:
        heads["conf_proj.weight"] = (random.standard_normal((1, size + rank)) / 4).astype(np.float32)
        heads["conf_proj.bias"] = np.array([1.5], np.float32)
    settings = {"dflash.sample_from_anchor": from_anchor, "dflash.has_confidence_head": has_confidence}
    rewritten(dflash, path, settings, {name: (values, QuantType.F32) for name, values in heads.items()})
    return heads
