"""The native CPU backend: packs weights for its kernels and compiles graphs into plans for its threads."""

from chaski.ml.backend import BackendOptions, CPUOptions
from chaski.ml.cpu.backend import CPUBackend

__all__ = ["OPTIONS", "CPUBackend", "open"]

OPTIONS = (BackendOptions, CPUOptions)


def open(options: BackendOptions, cpu: CPUOptions) -> CPUBackend:
    """Open the backend with its own threads."""
    return CPUBackend(options, cpu)
