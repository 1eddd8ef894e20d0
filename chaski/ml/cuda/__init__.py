"""CUDA backend: the kernels of an NVIDIA GPU, which give the bits of the cpu backend."""

from chaski.errors import optional_package
from chaski.ml import open_backend
from chaski.ml.backend import BackendOptions, CPUOptions
from chaski.ml.cuda.backend import CUDABackend

__all__ = ["OPTIONS", "CUDABackend", "open"]

OPTIONS = (BackendOptions, CPUOptions)


def open(options: BackendOptions, cpu: CPUOptions) -> CUDABackend:
    """Open it on the first GPU.

    Raises MissingPackageError without NVIDIA's packages, UnsupportedError without a driver or a GPU.
    """
    with optional_package("cuda-bindings", "cuda", "the cuda backend"):
        from chaski.ml.cuda.driver import open_gpu

    # What the host computes of a batch is little: more threads would wait longer for each other.
    host = open_backend("cpu", CPUOptions(threads=1, isa=cpu.isa, variants=cpu.variants))
    return CUDABackend(options, open_gpu(), host)
