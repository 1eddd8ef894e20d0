"""`DeviceRates`: how fast a device reads and multiplies, for predictions of a model's speed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["DeviceRates", "ProductRates"]


class ProductRates(Struct, frozen=True):
    """Rates of matrix products with one type of weights.

    reading   bytes of weights per second in a product with one token
    products  multiply-adds per second in a product with many tokens
    """

    reading: float
    products: float


class DeviceRates(Struct, frozen=True):
    """Rates of a device.

    by_type   rates of products, by the type of weights
    cells     bytes of keys and values that attention reads per second for one token
    scores    multiply-adds of attention per second for many tokens
    step      seconds until the next operation of a batch begins, in which nothing is computed
    """

    by_type: Mapping[str, ProductRates]
    cells: float
    scores: float
    step: float
