"""The foreign backend with layers on two devices, and the rest in host memory."""

from chaski.ml.backend import HOST, CacheConfig, CPUOptions
from chaski.ml.machine import available_memory

from .backend import ForeignBackend
from .devices import Devices

__all__ = ["OPTIONS", "SIZES", "open"]

OPTIONS = (CPUOptions,)

SIZES = {"imaginary:0": 1 << 34, "imaginary:1": 1 << 34}
"""The memory of each device, which tests may change."""


def open(cpu: CPUOptions) -> ForeignBackend:
    return ForeignBackend("foreign-split", CacheConfig(), Devices({HOST: available_memory(), **SIZES}))
