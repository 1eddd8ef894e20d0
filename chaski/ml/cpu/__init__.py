"""The native CPU backend: packs weights for its kernels and compiles graphs into plans for its threads."""

from chaski.ml.backend import BackendOptions
from chaski.ml.cpu.backend import CPUBackend

__all__ = ["CPUBackend", "open"]


def open(options: BackendOptions) -> CPUBackend:
    """Open it with threads of its own."""
    return CPUBackend(options)
