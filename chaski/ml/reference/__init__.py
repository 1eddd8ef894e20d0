"""NumPy backend: the definition of every operation and the oracle of the kernels. Not meant to be fast."""

from chaski.ml.backend import BackendOptions
from chaski.ml.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend", "open"]


def open(options: BackendOptions) -> ReferenceBackend:
    """Open it; the options are for devices that it does not have."""
    return ReferenceBackend()
