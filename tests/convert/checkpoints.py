"""The committed checkpoints, and what others make of them; see tools/fixtures/make_checkpoints.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "checkpoints"
EMBEDDERS = ["gemma-embedding", "nomic-bert"]
NAMES = sorted({path.name for path in DATA.iterdir()} - set(EMBEDDERS))
# Those that llama.cpp's converter was not asked about.
UNWITNESSED = {"llama4", "nomic-bert", "qwen2moe"}


@cache
def expected(name: str) -> dict[str, Any]:
    """Ids of texts, llama.cpp's metadata and tensors, outputs at some places of a prompt; means of texts."""
    found: dict[str, Any] = json.loads((DATA / name / "expected.json").read_text())
    with np.load(DATA / name / "expected.npz") as arrays:
        return found | dict(arrays)
