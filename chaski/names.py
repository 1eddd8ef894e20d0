"""What a model argument means: a file, or the name of a model that comes with chaski."""

from __future__ import annotations

import os
from pathlib import Path

from chaski.errors import ModelNotFoundError

__all__ = ["bundled_models", "resolve"]

_BUNDLED = Path(__file__).parent / "models"


def bundled_models() -> list[str]:
    """The names of the models inside the package."""
    return sorted(path.stem for path in _BUNDLED.glob("*.gguf"))


def resolve(model: str | os.PathLike[str]) -> Path:
    """The file that `model` means.

    A name is a bundled model; anything with a folder or an extension in it, and any `Path`, is a file.
    A file that is called like a bundled model is reached by `./name`.
    Raises ModelNotFoundError that says what there is.
    """
    if isinstance(model, str) and model in bundled_models():
        return _BUNDLED / f"{model}.gguf"
    path = Path(model)
    if path.is_file():
        return path
    if path.is_dir():
        raise ModelNotFoundError(f"{model} is a folder, not a model file{_files_in(path)}")
    names = ", ".join(bundled_models()) or "none"
    raise ModelNotFoundError(f"no file {str(model)!r} and no model of that name; models here: {names}")


def _files_in(folder: Path) -> str:
    files = sorted(path.name for path in folder.glob("*.gguf"))
    return f"; it holds {', '.join(files[:5])}" if files else ""
