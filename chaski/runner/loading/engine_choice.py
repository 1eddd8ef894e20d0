"""Choosing the engine of a model: ours, or llama.cpp where ours lacks a feature."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from chaski.env import Environment
from chaski.errors import ChaskiError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.metadata import blamed_on, check_is_model, check_metadata
from chaski.model.registry import ARCHITECTURES, build_model
from chaski.model.weights import match_weights
from chaski.names import LLAMA_CPP, NATIVE

__all__ = [
    "EXTRA",
    "choose_engine",
    "native_gap",
    "usual_engine",
]

EXTRA = "pip install 'chaski[llama-cpp]'"

_log = logging.getLogger(__name__)


def choose_engine(file: GGUFFile, requested: str | None = None, *, text: bool = True) -> str:
    """Return the engine of a model, ready to be used; a request or the model itself may have `requested` one.

    `text`: an unknown tokenizer is a reason for llama.cpp; ids can be computed without one.

    Raises UnsupportedError where that engine cannot have it, or is not installed, and for files of no model;
    where llama.cpp would be tried and is not installed, the error of `native_gap` that says how to get it.
    """
    check_is_model(file)
    engine = _forced(requested)
    known = ", ".join(sorted(ARCHITECTURES))
    if engine == NATIVE and file.architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path}: architecture {file.architecture!r:.80} is not implemented by the native engine, "
            f"which is asked for; it has {known}"
        )
    if engine == NATIVE:
        return NATIVE
    gap = native_gap(file) or (_gap_of_tokens(file) if text else None)
    if engine is None and gap is None:
        return NATIVE
    if _is_installed():
        # Where nobody asked for it, and ours is what they would expect, its other promises are news.
        is_news = engine is None and file.architecture in ARCHITECTURES
        level = logging.WARNING if is_news else logging.INFO
        _log.log(level, "llama.cpp computes %s: %s", file.path.name, gap or "it is asked for")
        return LLAMA_CPP
    if gap is None:
        raise UnsupportedError(f"{file.path}: the engine llama.cpp is asked for and not installed; {EXTRA}")
    raise type(gap)(f"{gap}; llama.cpp may be able to compute this file: {EXTRA} adds it as a second engine")


def usual_engine(file: GGUFFile, requested: str | None = None) -> str:
    """Return the engine of a model, installed or not.

    It is the one requested, else that of the environment, else ours where it lacks nothing for the model.
    """
    return _forced(requested) or (LLAMA_CPP if native_gap(file) or _gap_of_tokens(file) else NATIVE)


def _forced(requested: str | None) -> str | None:
    environment = Environment.read()
    return requested or (NATIVE if environment.new_engine else environment.engine)


def _is_installed() -> bool:
    return find_spec("xllamacpp") is not None


def native_gap(file: GGUFFile) -> ChaskiError | None:
    """Return the error that tells what a model takes and our engine lacks; None if nothing.

    The file's header says it, and no weight is read. Tensors that are missing, left over, or of another shape
    than ours may be those of a variant that llama.cpp knows, or of a damaged file: the error names them.
    Numbers that no model can have are no gap; they are told when the file is loaded.
    """
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        return UnsupportedError(
            f"{file.path}: architecture {file.architecture!r:.80} is not implemented here, only {known}"
        )
    unknown = next((tensor for tensor in file.tensors.values() if not tensor.type.is_known), None)
    if unknown is not None:
        return UnsupportedError(
            f"{unknown.path}: tensor {unknown.name} has the type {unknown.type.name}, which is not supported"
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


def _gap_of_tokens(file: GGUFFile) -> ChaskiError | None:
    """A tokenizer of a kind that is not here; of use only where llama.cpp is installed, which may know it."""
    from chaski.text.tokenizer.loader import unknown_kind

    unknown = unknown_kind(file.metadata)
    if unknown and _is_installed():
        return UnsupportedError(f"{file.path}: {unknown} is not known here")
    return None
