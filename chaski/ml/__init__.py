"""Machine learning for inference: graphs, operations, modules, and the backends that run them."""

from __future__ import annotations

from importlib import import_module

from chaski.errors import OptionError
from chaski.ml.backend import Backend, BackendOptions, CPUOptions, Options

__all__ = ["BACKENDS", "Backend", "BackendOptions", "CPUOptions", "Options", "open_backend"]

BACKENDS = {"cpu": "chaski.ml.cpu", "reference": "chaski.ml.reference"}
"""The module of each backend by name, which is imported when the backend is opened.

`OPTIONS` of a module are the classes of the options that it reads, and `open` takes one of each.
"""


def open_backend(name: str, *options: Options) -> Backend:
    """Open the backend `cpu` (native) or `reference` (NumPy; the definition of every operation).

    It gets the options that are for it, defaults where none are given, and none that are for other devices.
    """
    if name not in BACKENDS:
        raise OptionError(f"backend {name!r} is unknown; known: {', '.join(BACKENDS)}")
    module = import_module(BACKENDS[name])
    given = {type(each): each for each in options}
    backend: Backend = module.open(*(given.get(kind, kind()) for kind in module.OPTIONS))
    return backend
