"""The CUDA backend on the emulated device, for `open_backend`."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.ml.backend import Backend, BackendOptions, CPUOptions, Device, GPUOptions
from chaski.ml.cuda.layout import open_layout
from tests.cuda.emulated import NAME

from .gpu import EmulatedGPU, found_gpus

__all__ = ["OPTIONS", "gpus", "open"]

OPTIONS = (BackendOptions, CPUOptions, GPUOptions)


def open(options: BackendOptions, cpu: CPUOptions, gpus: GPUOptions) -> Backend:
    return open_layout(EmulatedGPU, NAME, options, cpu, gpus)


def gpus() -> Sequence[Device]:
    return found_gpus()
