"""Exponentials and logarithms that have the same bits on every machine: those of the native core.

NumPy's differ in their last bits between processors, and those of mathematical libraries between systems.
"""

from __future__ import annotations

from chaski import _native

__all__ = ["exponential_sum", "exponentials", "logarithm", "logarithms"]

exponentials = _native.exponentials
exponential_sum = _native.exponential_sum
logarithm = _native.logarithm
logarithms = _native.logarithms
