"""Which engine computes a model: ours, or llama.cpp where we have no file for the architecture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from chaski.env import Environment
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.registry import ARCHITECTURES

__all__ = ["ENGINES", "EXTRA", "LLAMA_CPP", "NATIVE", "check_engine", "choose_engine", "usual_engine"]

NATIVE, LLAMA_CPP = "native", "llama.cpp"
ENGINES = (NATIVE, LLAMA_CPP)
EXTRA = "pip install 'chaski[llama-cpp]'"


def choose_engine(file: GGUFFile, wish: str | None = None) -> str:
    """The engine of a model, ready to be used; `wish` is what a request or the model itself asks for.

    Raises UnsupportedError where that engine cannot have it, or is not installed.
    """
    return _installed(file.path, file.architecture, usual_engine(file.architecture, wish))


def usual_engine(architecture: str, wish: str | None = None) -> str:
    """The engine of an architecture, whether it is installed or not: what is wished for, else what the
    environment says, else ours for those that we have."""
    environment = Environment.read()
    forced = NATIVE if environment.new_engine else environment.engine
    return wish or forced or (NATIVE if architecture in ARCHITECTURES else LLAMA_CPP)


def check_engine(name: str | None) -> str | None:
    """The name of an engine, or None for any. Raises OptionError for another name."""
    if name is not None and name not in ENGINES:
        raise OptionError(f"option engine is {name!r}; it must be {' or '.join(ENGINES)}")
    return name


def _installed(path: Path, architecture: str, engine: str) -> str:
    known = ", ".join(sorted(ARCHITECTURES))
    if engine == LLAMA_CPP and find_spec("xllamacpp") is None:
        if architecture in ARCHITECTURES:
            raise UnsupportedError(f"{path}: the engine llama.cpp is asked for and not installed; {EXTRA}")
        raise UnsupportedError(
            f"{path}: architecture {architecture!r} is not implemented here, only {known}; llama.cpp may "
            f"have it: {EXTRA} adds it as a second engine"
        )
    if engine == NATIVE and architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{path}: architecture {architecture!r} is not implemented by the native engine, which is asked "
            f"for; it has {known}"
        )
    return engine
