"""Choosing the engine of a model: ours, or llama.cpp where ours lacks a feature."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from chaski.env import Environment
from chaski.errors import ChaskiError, GGUFError, UnsupportedError, extra_command
from chaski.formats.gguf import GGUFFile
from chaski.model.file_dialects import open_model
from chaski.model.metadata import blamed_on, check_is_model, check_metadata
from chaski.model.registry import ARCHITECTURES, build_model
from chaski.model.weights import match_weights
from chaski.names import LLAMA_CPP, NATIVE

__all__ = [
    "EXTRA",
    "choose_engine",
    "is_installed",
    "native_gap",
    "projector_gap",
    "reason_for_llama_cpp",
    "usual_engine",
]

EXTRA = extra_command("llama-cpp")

_log = logging.getLogger(__name__)


def choose_engine(
    file: GGUFFile, requested: str | None = None, projector: Path | None = None, *, text: bool = True
) -> str:
    """Return the engine of a model, ready to be used; a request or the model itself may have `requested` one.

    projector  the encoder of images that the model has in another file
    text       whether an unknown tokenizer is a reason for llama.cpp; ids can be computed without one

    Raises UnsupportedError if that engine cannot load the model or is not installed, and for files of no
    model. If llama.cpp is needed but not installed, raises the error of `native_gap`, which explains how
    to install it.
    """
    check_is_model(file)
    engine = _forced(requested)
    if engine == NATIVE and file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)  # imports all of them
        raise UnsupportedError(
            f"{file.path}: architecture {file.architecture!r:.80} is not implemented by the native engine, "
            f"which is asked for; it has {known}"
        )
    if engine == NATIVE:
        return NATIVE
    gap = native_gap(file) or (_smaller_gap(file, projector) if text else None)
    if engine is None and gap is None:
        return NATIVE
    if is_installed():
        # A user who did not choose llama.cpp for a model that ours computes does not expect its weaker
        # promises.
        is_news = engine is None and file.architecture in ARCHITECTURES
        level = logging.WARNING if is_news else logging.INFO
        _log.log(level, "llama.cpp computes %s: %s", file.path.name, gap or "it is asked for")
        return LLAMA_CPP
    if gap is None:
        raise UnsupportedError(f"{file.path}: the engine llama.cpp is asked for and not installed; {EXTRA}")
    raise type(gap)(f"{gap}; llama.cpp may be able to compute this file: {EXTRA} adds it as a second engine")


def usual_engine(file: GGUFFile, requested: str | None = None, projector: Path | None = None) -> str:
    """Return the engine of a model, installed or not.

    It is the requested one, else the one that the environment names, else ours if it lacks nothing for the
    model.
    """
    gap = _forced(requested) or native_gap(file) or _smaller_gap(file, projector)
    return gap if isinstance(gap, str) else LLAMA_CPP if gap else NATIVE


def reason_for_llama_cpp(file: GGUFFile, projector: Path | None = None) -> str:
    """Return in a sentence, without paths, why llama.cpp computes a model."""
    gap = native_gap(file) or _smaller_gap(file, projector)
    if gap is None:
        return "it is asked for"
    text = str(gap)
    for path in (file.path, projector):
        text = text.replace(f"{path}: ", "").replace(f"{path}", "the file")
    return text


def _forced(requested: str | None) -> str | None:
    return requested or Environment.read().engine


def is_installed() -> bool:
    """Return whether the package of llama.cpp can be imported."""
    return find_spec("xllamacpp") is not None


def native_gap(file: GGUFFile) -> ChaskiError | None:
    """Return the error that names what a model needs and our engine lacks; None if nothing.

    The check reads only the file's header. Tensors that are missing, left over, or of another shape
    than ours may be those of a variant that llama.cpp knows, or of a damaged file: the error names them.
    Impossible numbers do not count as gaps; loading the file reports them.
    """
    if file.architecture not in ARCHITECTURES:
        return UnsupportedError(
            f"{file.path}: architecture {file.architecture!r:.80} is not implemented here (`chaski models` "
            "lists those that are)"
        )
    try:
        check_metadata(file)
    except ChaskiError:
        return None
    try:
        with blamed_on(file):
            match_weights(build_model(file), file)
    except ChaskiError as error:
        return error
    return None


def projector_gap(file: GGUFFile, path: Path) -> ChaskiError | None:
    """Return the error if our engine cannot use a projector; None if it can.

    A damaged file does not count as a gap.
    """
    try:
        with open_model(path) as projector:
            return _misfit(file, projector)
    except GGUFError:
        return None


def _misfit(file: GGUFFile, projector: GGUFFile) -> ChaskiError | None:
    try:
        with blamed_on(projector):
            match_weights(build_model(file, projector), file, projector)
    except ChaskiError as error:
        return error
    return None


def _smaller_gap(file: GGUFFile, projector: Path | None) -> ChaskiError | None:
    """Return a gap that leaves our engine some use: an unknown tokenizer or projector.

    It matters only where llama.cpp is installed, which may know them.
    """
    if not is_installed():
        return None
    from chaski.text.tokenizer.loader import unknown_kind

    if unknown := unknown_kind(file.metadata):
        return UnsupportedError(f"{file.path}: {unknown} is not known here")
    return None if projector is None else projector_gap(file, projector)
