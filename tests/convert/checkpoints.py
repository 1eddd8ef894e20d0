"""The committed checkpoints, the results of other programs for them, and changed copies.

tools/fixtures/make_checkpoints.py makes them.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chaski.convert.convert import convert
from chaski.formats.gguf import GGUFFile, open_gguf
from tests.safetensors_files import write_safetensors

__all__ = [
    "ASSISTANTS",
    "DATA",
    "EMBEDDERS",
    "NAMES",
    "UNWITNESSED",
    "changed",
    "expected",
    "write_safetensors",
    "written",
]

DATA = Path(__file__).parents[1] / "data" / "checkpoints"
EMBEDDERS = ["bert", "eurobert", "gemma-embedding", "jina-bert-v3", "modern-bert", "nomic-bert", "roberta"]
EMBEDDERS += ["distilbert", "jina-bert-v2", "jina-bert-v2-code", "nomic-bert-moe", "t5encoder"]
# These propose tokens for another model, and cannot run alone.
ASSISTANTS = ["gemma4-assistant", "gemma4-small-assistant"]
NAMES = sorted({path.name for path in DATA.iterdir()} - {*EMBEDDERS, *ASSISTANTS})
# Checkpoints without results from llama.cpp's converter.
UNWITNESSED = {"jina-bert-v3", "llama4", "nomic-bert", "qwen2moe", "t5encoder"}
UNWITNESSED |= {"granitehybrid", "granitehybrid-moe"}


@cache
def expected(name: str) -> dict[str, Any]:
    """Return ids of texts, llama.cpp's metadata and tensors, and outputs of a prompt, or vectors."""
    found: dict[str, Any] = json.loads((DATA / name / "expected.json").read_text())
    with np.load(DATA / name / "expected.npz") as arrays:
        return found | dict(arrays)


def changed(name: str, folder: Path, values: dict[str, Any]) -> Path:
    """Return a copy whose configuration has these values; None removes one."""
    shutil.copytree(DATA / name, folder)
    config = json.loads((folder / "config.json").read_text()) | values
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def written(folder: Path) -> GGUFFile:
    convert(folder, folder / "out.gguf", "F32")
    return open_gguf(folder / "out.gguf")
