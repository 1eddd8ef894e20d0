"""NumPy backend: the definition of every operation and the oracle for kernels, not meant to be fast."""

from chaski.ml.reference.backend import ReferenceBackend

__all__ = ["OPTIONS", "ReferenceBackend", "open"]

OPTIONS = ()


def open() -> ReferenceBackend:
    """Open the backend. It has no options, because it has one form of every operation."""
    return ReferenceBackend()
