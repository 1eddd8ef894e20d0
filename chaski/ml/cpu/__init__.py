"""The native CPU backend: packs weights for its kernels and compiles graphs into plans for its threads."""

from chaski.ml.cpu.backend import CPUBackend

__all__ = ["CPUBackend"]
