"""The foreign backend with masks by pages."""

from chaski.ml.backend import CacheConfig, MaskForm

from .backend import ForeignBackend
from .devices import Devices

__all__ = ["OPTIONS", "open"]

PAGE = 16
OPTIONS = ()


def open() -> ForeignBackend:
    return ForeignBackend(
        "foreign",
        CacheConfig(alignment=PAGE, page=PAGE, mask=MaskForm.PAGED),
        Devices({"imaginary": 1 << 34}),
    )
