"""The foreign backend with masks as matrices."""

from chaski.ml.backend import CacheConfig, MaskForm

from .backend import ForeignBackend
from .devices import Devices

__all__ = ["OPTIONS", "open"]

OPTIONS = ()


def open() -> ForeignBackend:
    config = CacheConfig(padding=7, permuted_values=True, mask=MaskForm.F16)
    return ForeignBackend("foreign-dense", config, Devices({"imaginary": 1 << 34}))
