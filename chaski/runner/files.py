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

__all__ = ["file_templates", "named_templates", "open_files", "stored_projector"]

_log = logging.getLogger(__name__)


_TEMPLATE = "tokenizer.chat_template"


def file_templates(file: GGUFFile) -> tuple[str | None, str | None]:
    """The chat template of a file, and the one that stands for it where there are tools, if there is another.

    A file that has only the latter means it always.
    """
    default, tool_use = (file.get(key, str, None) for key in (_TEMPLATE, f"{_TEMPLATE}.tool_use"))
    return (tool_use, None) if default is None else (default, tool_use)


def named_templates(file: GGUFFile) -> list[str]:
    """The names of all chat templates of a file; `default` is the one without a name."""
    named = [key.removeprefix(f"{_TEMPLATE}.") for key in file.metadata if key.startswith(f"{_TEMPLATE}.")]
    return [*(["default"] if _TEMPLATE in file.metadata else []), *sorted(named)]


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
