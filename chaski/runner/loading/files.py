"""The files of a model: its own, and that of its encoder of images where that is another one."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from chaski.chat.defaults import Defaults
from chaski.errors import GGUFError, ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.dialects import in_our_names, open_model
from chaski.model.registry import build_model, takes_projector
from chaski.store.model import StoredModel

__all__ = ["OpenedModel", "stored_projector"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model that was looked up once, with what goes without saying for it, and its file, open."""

    found: StoredModel
    defaults: Defaults
    file: GGUFFile

    @classmethod
    def of(cls, found: StoredModel) -> OpenedModel:
        """Open a model. Raises GGUFError, UnsupportedError, OptionError or SamplingError."""
        defaults = Defaults.of(found)
        written = open_gguf(found.path)
        file = in_our_names(written)
        if _sees(written) and not _sees(file):
            _log.warning(
                "text only: the encoder of images in %s (%s) is not implemented",
                found.path.name,
                written.architecture,
            )
        return cls(found, defaults, file)

    def open_projector(self, path: str | os.PathLike[str] | None = None) -> GGUFFile | None:
        """Open the projector that is asked for, else the one that the model is stored with.

        One that it is stored with and that cannot be used here is left out, with a warning: text needs none.
        """
        return stored_projector(self.found, self.file) if path is None else _open(Path(path))


def _sees(file: GGUFFile) -> bool:
    """True if a file has tensors of an encoder of images."""
    return any(name.startswith(("v.", "mm.")) for name in file.tensors)


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
