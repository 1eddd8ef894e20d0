"""Rates of GPUs by their names, from published figures and what was measured on one of them.

A GPU reads at 0.88 of its nominal bandwidth, of which products reach 0.85. These shares, the seconds between
two kernels, and the multiply-adds of a multiprocessor in a cycle come from the kernels that one H200 ran, and
from the estimates of other GPUs in docs/gpu.md. Rates of GPUs other than that one are predictions.
"""

from __future__ import annotations

from msgspec import Struct

from chaski.ml.rates import DeviceRates, ProductRates

__all__ = ["GPU_FIGURES", "gpu_rates", "is_known"]

_COPIED, _READ = 0.88, 0.85
_BETWEEN_KERNELS = 3.5e-6
_SCORES = 0.25


class _Figures(Struct, frozen=True):
    """Nominal bytes per second, multiprocessors, cycles per second, and multiply-adds in a cycle of each."""

    bandwidth: float
    cores: int
    clock: float
    products: float


_LARGE, _SMALL = 160, 82
# The first name that a product's name contains.
GPU_FIGURES = {
    "H200": _Figures(4.8e12, 132, 1.74e9, _LARGE),
    "H100": _Figures(3.35e12, 132, 1.74e9, _LARGE),
    "A100": _Figures(2.04e12, 108, 1.41e9, 145),
    "L40S": _Figures(0.864e12, 142, 2.52e9, _SMALL),
    "RTX 5090": _Figures(1.79e12, 170, 2.41e9, _SMALL),
    "RTX 5080": _Figures(0.96e12, 84, 2.62e9, _SMALL),
    "RTX 4090": _Figures(1.008e12, 128, 2.52e9, _SMALL),
    "RTX 4070": _Figures(0.504e12, 46, 2.48e9, _SMALL),
    "RTX 4060": _Figures(0.272e12, 24, 2.46e9, _SMALL),
    "RTX 3090": _Figures(0.936e12, 82, 1.70e9, _SMALL),
    "RTX 3060": _Figures(0.360e12, 28, 1.78e9, _SMALL),
    "A10": _Figures(0.600e12, 72, 1.70e9, _SMALL),
}
_UNKNOWN = _Figures(0.3e12, 28, 1.7e9, _SMALL)


def is_known(model: str) -> bool:
    """Return whether the figures of a GPU are known; the rates of others are assumed."""
    return _figures(model) is not None


def gpu_rates(model: str) -> DeviceRates:
    """Return the rates of a GPU by the name of the product; those of a small card for an unknown one."""
    figures = _figures(model) or _UNKNOWN
    reading = _READ * _COPIED * figures.bandwidth
    products = figures.products * figures.cores * figures.clock
    return DeviceRates({"": ProductRates(reading, products)}, reading, _SCORES * products, _BETWEEN_KERNELS)


def _figures(model: str) -> _Figures | None:
    return next((found for name, found in GPU_FIGURES.items() if name in model), None)
