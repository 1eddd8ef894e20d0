"""Tiny random checkpoints of Gemma 3n with images, and what timm, transformers and llama.cpp make of them.

tools/fixtures/make_mobilenet.py makes tests/data/mobilenet. Weights follow from their names.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests import families

__all__ = [
    "DATA",
    "END",
    "NAMES",
    "PROMPTS",
    "SIZES",
    "SOFT",
    "START",
    "VOCABULARY",
    "checkpoint",
    "expected",
]

DATA = Path(__file__).parent / "data" / "mobilenet"
NAMES = sorted(path.stem for path in DATA.glob("*.npz"))
SIZES = {"wide": (41, 67), "high": (150, 90)}
PROMPTS: dict[str, tuple[str, list[str]]] = {
    "text": ("The runner carries the message.", []),
    "two": ("The runner[img-0] carries[img-1] the message.", ["wide", "high"]),
}
# The last two are of the encoder's own vocabulary, which begins after that of the text model.
VOCABULARY, START, END, SOFT = 304, 300, 304, 305
_TOKENS = {number: f"<unused{number}>" for number in range(START, SOFT)}
_TOKENS |= {START: "<start_of_image>", END: "<end_of_image>", SOFT: "<image_soft_token>"}


@cache
def expected(name: str) -> dict[str, Any]:
    """Return `about` (the checkpoint's configuration, its tensors, and llama.cpp's projector) and arrays."""
    with np.load(DATA / f"{name}.npz") as arrays:
        found = dict(arrays)
    return {**found, "about": json.loads(str(found["about"]))}


def checkpoint(folder: Path, about: dict[str, Any]) -> Path:
    """Write the checkpoint."""
    families.checkpoint(folder, about["config"], about["tensors"], about["seed"])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": number, "content": text, "special": True, **flags} for number, text in _TOKENS.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "preprocessor_config.json").write_text(json.dumps(about["processor"]))
    return folder
