"""CUDA backend: the kernels of NVIDIA GPUs, which give the bits of the cpu backend."""

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
    """Open it on one GPU or several, with the processor where it has some layers.

    Raises MissingPackageError without NVIDIA's packages, UnsupportedError without a driver or such a GPU.
    """
    with _packages():
        from chaski.ml.cuda.driver import open_gpu
    from chaski.ml.cuda.layout import open_layout

    return open_layout(open_gpu, "cuda", options, cpu, gpus)


def gpus() -> Sequence[Device]:
    """Return the GPUs that can compute, in the driver's order, with their free memory. Raises as `open`."""
    with _packages():
        from chaski.ml.cuda.driver import found_gpus

    return found_gpus()


def is_there() -> bool:
    """Return whether NVIDIA's packages and a driver are installed. No package is imported for that."""
    try:
        if find_spec("cuda.bindings") is None:
            return False
        ctypes.CDLL(_DRIVER)
    except (ImportError, OSError):
        return False
    return True


def _packages() -> AbstractContextManager[None]:
    return optional_package("cuda-bindings", "cuda", "the cuda backend")
