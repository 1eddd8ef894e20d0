"""Machine learning for inference: graphs, operations, modules, and the backends that run them."""

from __future__ import annotations

from importlib import import_module

from chaski.errors import OptionError
from chaski.ml.backend import Backend, BackendOptions

__all__ = ["BACKENDS", "Backend", "BackendOptions", "open_backend"]

BACKENDS = {"cpu": "chaski.ml.cpu", "reference": "chaski.ml.reference"}
"""The module of each backend by name. It is imported when the backend is opened, by its function `open`."""


def open_backend(name: str, options: BackendOptions) -> Backend:
    """Open the backend `cpu` (native) or `reference` (NumPy; the definition of every operation)."""
    if name not in BACKENDS:
        raise OptionError(f"backend {name!r} is unknown; known: {', '.join(BACKENDS)}")
    backend: Backend = import_module(BACKENDS[name]).open(options)
    return backend
