"""The committed checkpoints, and what others make of them; see tools/fixtures/make_checkpoints.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "checkpoints"
NAMES = sorted(path.name for path in DATA.iterdir())


@cache
def expected(name: str) -> dict[str, Any]:
    """Ids of texts, llama.cpp's metadata and tensors, and outputs at some places of a prompt."""
    found: dict[str, Any] = json.loads((DATA / name / "expected.json").read_text())
    with np.load(DATA / name / "expected.npz") as arrays:
        return found | dict(arrays)
