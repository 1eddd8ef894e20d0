"""The CUDA backend on the emulated device, for `open_backend`."""

from __future__ import annotations

from chaski.ml.backend import BackendOptions, CPUOptions
from chaski.ml.cpu import CPUBackend
from chaski.ml.cuda.backend import CUDABackend

from .gpu import EmulatedGPU

__all__ = ["OPTIONS", "open"]

OPTIONS = (BackendOptions, CPUOptions)


def open(options: BackendOptions, cpu: CPUOptions) -> CUDABackend:
    return CUDABackend(
        options, EmulatedGPU(), CPUBackend(BackendOptions(), CPUOptions(threads=1, isa=cpu.isa))
    )
