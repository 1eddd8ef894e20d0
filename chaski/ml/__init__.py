"""What a model may compute with: graphs, operations, modules, and the backends that run them."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.ml.backend import Backend, BackendOptions

__all__ = ["Backend", "BackendOptions", "open_backend"]


def open_backend(name: str, options: BackendOptions) -> Backend:
    """Open the backend `cpu` (native) or `reference` (NumPy; the definition of every operation)."""
    if name == "cpu":
        from chaski.ml.cpu import CPUBackend

        return CPUBackend(options)
    if name == "reference":
        from chaski.ml.reference import ReferenceBackend

        return ReferenceBackend()
    raise OptionError(f"backend {name!r} is unknown; known: cpu, reference")
