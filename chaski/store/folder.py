"""`folder_model`: the GGUF files of a folder that make one model."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from chaski.errors import ChaskiError, ModelNotFoundError, UnsupportedError
from chaski.store.weights import inspect

__all__ = ["CONVERTIBLE", "FolderModel", "folder_model"]

CONVERTIBLE = (".safetensors", ".bin", ".pth")
"""Suffixes of weights that can be converted in a folder with what belongs to them."""

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_MAX_SHOWN = 10


class FolderModel(Struct, frozen=True):
    """The weights of a folder, a split file by its first part, and its projector if there is one."""

    path: Path
    projector: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.projector is None else (self.path, self.projector)


def folder_model(folder: Path) -> FolderModel:
    """Find the only model of a folder, and its only projector. LoRA adapters are left out.

    Raises ModelNotFoundError where there is no GGUF file, or where several could be meant, and
    UnsupportedError where there are weights of another format.
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
    """Return the kind of layer that a file makes. A damaged one counts as a model: opening it says more."""
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
