"""`folder_model`: finds the GGUF files in a folder that form one model."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from chaski.errors import ChaskiError, ModelNotFoundError, UnsupportedError
from chaski.store.weights import inspect

__all__ = ["CONVERTIBLE", "FolderModel", "folder_model"]

CONVERTIBLE = (".safetensors", ".bin", ".pth")
"""Suffixes of weights that can be converted if the folder also contains config and tokenizer."""

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_MAX_SHOWN = 10


class FolderModel(Struct, frozen=True):
    """The weights of a folder (the first part of a split file) and its optional projector."""

    path: Path
    projector: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.projector is None else (self.path, self.projector)


def folder_model(folder: Path) -> FolderModel:
    """Find the only model in a folder and its only projector, ignoring LoRA adapters.

    Raises ModelNotFoundError if there is no GGUF file or several candidates, and UnsupportedError for weights
    of another format.
    """
    found = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    files = [path for path in found if not _LATER_PART.search(path.name)] or found[:1]
    kinds = {path: _kind(path) for path in files}
    models = [path for path, kind in kinds.items() if kind == "model"]
    projectors = [path for path, kind in kinds.items() if kind == "projector"]
    if not models:
        advice = _advice(folder)
        problem = f"{folder} is a folder without a GGUF file of a model{advice}"
        raise UnsupportedError(problem) if advice else ModelNotFoundError(problem)
    for several in (models, projectors):
        if len(several) > 1:
            names = ", ".join(path.name for path in several[:_MAX_SHOWN])
            raise ModelNotFoundError(
                f"{folder} is a folder with {len(several)} {kinds[several[0]]}s; name the file: {names}"
            )
    return FolderModel(models[0], projectors[0] if projectors else None)


def _kind(path: Path) -> str:
    """Return the layer kind of a file. A damaged file counts as a model; opening it reports why."""
    try:
        return inspect(path).kind
    except ChaskiError:
        return "model"


def _advice(folder: Path) -> str:
    weights = min((path.name for path in folder.iterdir() if path.suffix in CONVERTIBLE), default=None)
    if weights is None:
        return ""
    if (folder / "config.json").is_file():
        return f"; `chaski convert {folder} NAME.gguf` makes one of the checkpoint there"
    return f"; {weights} alone cannot be converted to GGUF, config.json and a tokenizer must be there too"
