"""CUDA backend: kernels for NVIDIA GPUs, with results that are bit-identical to the cpu backend's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec

from chaski.errors import optional_package
from chaski.ml.backend import Backend, BackendOptions, CPUOptions, Device, GPUOptions

__all__ = ["OPTIONS", "gpus", "is_there", "open"]

OPTIONS = (BackendOptions, CPUOptions, GPUOptions)

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def open(options: BackendOptions, cpu: CPUOptions, gpus: GPUOptions) -> Backend:
    """Open the backend on one or several GPUs, and on the processor if that computes some layers.

    Raises MissingPackageError if NVIDIA's packages are missing, and UnsupportedError if there is no driver or
    no suitable GPU.
    """
    with _packages():
        from chaski.ml.cuda.driver import open_gpu
    from chaski.ml.cuda.layout import open_layout

    return open_layout(open_gpu, "cuda", options, cpu, gpus)


def gpus() -> Sequence[Device]:
    """Return the suitable GPUs, in the driver's order, with their free memory. Raises as `open` does."""
    with _packages():
        from chaski.ml.cuda.driver import found_gpus

    return found_gpus()


def is_there() -> bool:
    """Return whether NVIDIA's packages and a driver are installed, without importing a package."""
    try:
        if find_spec("cuda.bindings") is None:
            return False
        ctypes.CDLL(_DRIVER)
    except (ImportError, OSError):
        return False
    return True


def _packages() -> AbstractContextManager[None]:
    return optional_package("cuda-bindings", "cuda", "the cuda backend")
