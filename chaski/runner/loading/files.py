"""The files of a model: its own, and that of its image encoder if that is separate."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.defaults import Defaults
from chaski.errors import ChaskiError, ModelNotFoundError, TokenizerError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.file_dialects import in_our_names, open_model
from chaski.runner.loading.engine_choice import EXTRA, is_installed, projector_gap
from chaski.store.model import StoredModel

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["OpenedModel", "found_projector", "image_projector", "stored_projector"]

_log = logging.getLogger(__name__)


class OpenedModel(Struct, frozen=True):
    """A model that was looked up once, with its defaults, and its open file.

    `tokenizer` is that of the file, if it was read already.
    """

    found: StoredModel
    defaults: Defaults
    file: GGUFFile
    tokenizer: Tokenizer | None = None

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

    def expecting_text(self) -> OpenedModel:
        """Return the same with its tokenizer, whose tables are built while the rest is loaded.

        A faulty file is returned unchanged: encoding a text reports the fault.
        """
        from chaski.text.tokenizer import file_tokenizer

        try:
            tokenizer = file_tokenizer(self.file)
            tokenizer.prepare()
        except (TokenizerError, UnsupportedError):
            return self
        return replace(self, tokenizer=tokenizer)

    def open_projector(self, path: str | os.PathLike[str] | None = None) -> GGUFFile | None:
        """Open the projector that is asked for, else the one that the model is stored with.

        A stored projector that cannot be used here is left out with a warning: text needs none.
        """
        return stored_projector(self.found, self.file) if path is None else open_model(found_projector(path))


def _sees(file: GGUFFile) -> bool:
    """True if a file has tensors of an encoder of images."""
    return any(name.startswith(("v.", "mm.")) for name in file.tensors)


def stored_projector(found: StoredModel, file: GGUFFile) -> GGUFFile | None:
    """The projector that a model, whose own file is `file`, is stored with, if our engine can use it."""
    if not found.projectors:
        return None
    if len(found.projectors) > 1:
        _log.warning("text only: %s has projectors that this version does not support", found.path.name)
        return None
    path = found.projectors[0]
    try:
        gap = projector_gap(file, path)
        if gap is None:
            return open_model(found_projector(path))
        way_out = "" if image_projector(found) is None else f"; {_way_out()}"
    except ChaskiError as error:
        gap, way_out = error, ""
    _log.warning("text only: %s%s", gap, way_out)
    return None


def image_projector(found: StoredModel) -> Path | None:
    """The encoder of images that a model is stored with, if it is a file for llama.cpp."""
    if len(found.projectors) != 1:
        return None
    try:
        with open_gguf(found.projectors[0]) as file:
            kinds = {"clip.projector_type", "clip.vision.projector_type"} & file.metadata.keys()
            sees = file.architecture == "clip" and file.get("clip.has_vision_encoder", bool, False)
    except ChaskiError:
        return None
    return found.projectors[0] if sees and kinds else None


def _way_out() -> str:
    if is_installed():
        return "llama.cpp may see with it, in a worker: chaski.Worker, `chaski run` or `chaski serve`"
    return f"llama.cpp may see with it: {EXTRA} adds it as a second engine"


def found_projector(path: str | os.PathLike[str]) -> Path:
    """Return the path of a projector. Raises ModelNotFoundError if the file is missing."""
    if not Path(path).is_file():
        raise ModelNotFoundError(f"the projector file {os.fspath(path)} does not exist")
    return Path(path)
