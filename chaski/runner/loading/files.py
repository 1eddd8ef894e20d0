"""The files of a model: its own, and that of its encoder of images where that is another one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from chaski.errors import GGUFError, ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.dialects import in_our_names, open_model
from chaski.model.registry import build_model, takes_projector
from chaski.store.model import StoredModel

__all__ = ["open_files", "stored_projector"]

_log = logging.getLogger(__name__)


def open_files(
    found: StoredModel, projector: str | os.PathLike[str] | None = None
) -> tuple[GGUFFile, GGUFFile | None]:
    """The file of a model, and its projector: the one that is asked for, else the one that it is stored with.

    One that it is stored with and that cannot be used here is left out, with a warning: text needs none.
    """
    written = open_gguf(found.path)
    file = in_our_names(written)
    if len(file.tensors) < len(written.tensors):
        _log.warning(
            "text only: the encoder of images in %s (%s) is not implemented",
            found.path.name,
            written.architecture,
        )
    if projector is not None:
        return file, _open(Path(projector))
    return file, stored_projector(found, file)


def stored_projector(found: StoredModel, file: GGUFFile) -> GGUFFile | None:
    """The projector that a model, whose own file is `file`, is stored with, if it can be used here."""
    if not found.projectors:
        return None
    if len(found.projectors) > 1 or not takes_projector(file):
        _log.warning("text only: %s has projectors that this version does not support", found.path.name)
        return None
    stored = _open(found.projectors[0])
    try:
        build_model(file, stored)
    except (GGUFError, ModelError, UnsupportedError) as error:
        _log.warning("text only: %s", error)
        stored.close()
        return None
    return stored


def _open(path: Path) -> GGUFFile:
    if not path.is_file():
        raise ModelNotFoundError(f"there is no projector file {path}")
    return open_model(path)
