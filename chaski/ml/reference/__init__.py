"""NumPy backend: the definition of every operation and the oracle of the kernels. Not meant to be fast."""

from chaski.ml.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
