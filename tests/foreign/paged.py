"""The foreign backend with masks by pages."""

from chaski.ml.backend import BackendOptions, CacheConfig, MaskForm

from .backend import ForeignBackend

__all__ = ["open"]

PAGE = 16


def open(options: BackendOptions) -> ForeignBackend:
    return ForeignBackend("foreign", CacheConfig(alignment=PAGE, page=PAGE, mask=MaskForm.PAGED))
