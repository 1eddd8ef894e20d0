"""The files of a model: its own, and that of its encoder of images where that is another one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from chaski.errors import ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.registry import build_model, takes_projector
from chaski.store.model import StoredModel

__all__ = ["open_files"]

_log = logging.getLogger(__name__)


def open_files(
    found: StoredModel, projector: str | os.PathLike[str] | None = None
) -> tuple[GGUFFile, GGUFFile | None]:
    """The file of a model, and its projector: the one that is asked for, else the one that it is stored with.

    One that it is stored with and that cannot be used here is left out, with a warning: text needs none.
    """
    file = open_gguf(found.path)
    if projector is not None:
        return file, _open(Path(projector))
    if not found.projectors:
        return file, None
    if not takes_projector(file):
        _log.warning("%s: images are not supported for its architecture", found.path.name)
        return file, None
    if len(found.projectors) > 1:
        raise UnsupportedError(f"{found.path} has {len(found.projectors)} projectors; this version takes one")
    stored = _open(found.projectors[0])
    try:
        build_model(file, stored)
    except UnsupportedError as error:
        _log.warning("text only: %s", error)
        stored.close()
        return file, None
    return file, stored


def _open(path: Path) -> GGUFFile:
    if not path.is_file():
        raise ModelNotFoundError(f"there is no projector file {path}")
    return open_gguf(path)
