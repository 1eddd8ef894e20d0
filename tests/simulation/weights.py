"""The models of simulated worlds: tiny files that are written once for each process."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from chaski.formats.gguf import open_gguf
from tests.adapters import adapted_names, random_adapter
from tests.store.stores import put_by_hand
from tests.tiny_llama import TEMPLATE, write_tiny_llama
from tests.tiny_vision import DATA

__all__ = [
    "MEMORY_FOLDER",
    "PULLED",
    "SEES",
    "TUNED",
    "adapter_file",
    "model_files",
    "picture",
    "put_models",
]

MEMORY_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory for all files of a world; None for the usual folder."""

_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
_OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"layers": 2},
    "two": {"layers": 1, "chat_template": _TOOLS + TEMPLATE},
    "vectors": {"layers": 1, "llama__pooling_type": 1},
}
SEES = "sees"
"""A model with a vision encoder."""
TUNED = "tuned"
"""A model with the weights of `one` and an adapter."""
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
    files[SEES] = folder / "sees.gguf"
    shutil.copyfile(DATA / "gemma3.gguf", files[SEES])
    return files | dict.fromkeys(PULLED, pulled)


@cache
def picture(number: int) -> bytes:
    """Return a PNG file of one color, and of a size that its number determines."""
    file = io.BytesIO()
    Image.new("RGB", (20 + number, 16), (200, 90 * number, 30)).save(file, "PNG")
    return file.getvalue()


@cache
def adapter_file() -> Path:
    """Return the file of the adapter of `tuned`."""
    with open_gguf(model_files()["one"]) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    return random_adapter(Path(_folder().name) / "adapter.gguf", shapes, 1, rank=4, size=0.5)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def put_models(root: Path) -> None:
    """Write the models of a world into a store, with hard links to their files."""
    files = {name: {"model": path} for name, path in model_files().items() if name not in PULLED}
    files[TUNED] = {**files["one"], "adapter": adapter_file()}
    for name, layers in files.items():
        manifest = put_by_hand(root, f"registry.ollama.ai/library/{name}/latest", {})
        described = json.loads(manifest.read_text())
        described["layers"] = [_linked(root, kind, path) for kind, path in layers.items()]
        manifest.write_text(json.dumps(described))


def _linked(root: Path, kind: str, path: Path) -> dict[str, Any]:
    """Link a file as a blob, and return the description of its layer."""
    digest = _digest(path)
    with suppress(FileExistsError):
        os.link(path, root / "blobs" / f"sha256-{digest}")
    return {
        "mediaType": f"application/vnd.ollama.image.{kind}",
        "digest": f"sha256:{digest}",
        "size": path.stat().st_size,
    }
