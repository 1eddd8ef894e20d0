"""NumPy backend: the definition of every operation and the oracle of the kernels. Not meant to be fast."""

from chaski.ml.reference.backend import ReferenceBackend

__all__ = ["OPTIONS", "ReferenceBackend", "open"]

OPTIONS = ()


def open() -> ReferenceBackend:
    """Open it. There is nothing to choose: it has one form of everything."""
    return ReferenceBackend()
