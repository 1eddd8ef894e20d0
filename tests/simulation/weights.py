"""The models of simulated worlds: tiny files that are written once for each process."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.store.stores import put_by_hand
from tests.tiny_llama import TEMPLATE, write_tiny_llama

__all__ = ["MEMORY_FOLDER", "MODELS", "PULLED", "model_files", "put_models"]

MEMORY_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory for all files of a world; None for the usual folder."""

_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
_OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"layers": 2},
    "two": {"layers": 1, "chat_template": _TOOLS + TEMPLATE},
    "vectors": {"layers": 1, "llama__pooling_type": 1},
}
MODELS = tuple(_OPTIONS)
PULLED = ("models.example/me/three", "models.example/me/four")
"""Models of the simulated registry, which have the same weights."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaski-simulated-", dir=MEMORY_FOLDER)


@cache
def model_files() -> dict[str, Path]:
    """Return the files of all models."""
    folder = Path(_folder().name)
    files = {name: write_tiny_llama(folder / f"{name}.gguf", **options) for name, options in _OPTIONS.items()}
    pulled = write_tiny_llama(folder / "pulled.gguf", layers=1, general__description="pulled")
    return files | dict.fromkeys(PULLED, pulled)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def put_models(root: Path) -> None:
    """Write the models of a world into a store, with hard links to their files."""
    for name in MODELS:
        path = model_files()[name]
        manifest = put_by_hand(root, f"registry.ollama.ai/library/{name}/latest", {})
        digest = _digest(path)
        os.link(path, root / "blobs" / f"sha256-{digest}")
        described = json.loads(manifest.read_text())
        described["layers"] = [
            {
                "mediaType": "application/vnd.ollama.image.model",
                "digest": f"sha256:{digest}",
                "size": path.stat().st_size,
            }
        ]
        manifest.write_text(json.dumps(described))
