"""Exponentials, logarithms and rounding that give the same bits on every machine and in every process.

NumPy's exponentials and logarithms differ in their last bits between processors, and those of mathematical
libraries between systems. How a thread rounds is a setting that any library of the process may change.
"""

from __future__ import annotations

from contextlib import ContextDecorator

from chaski import _native

__all__ = ["UsualFloats", "exponential_sum", "exponentials", "logarithm", "logarithms"]

exponentials = _native.exponentials
exponential_sum = _native.exponential_sum
logarithm = _native.logarithm
logarithms = _native.logarithms


class UsualFloats(ContextDecorator):
    """Let this thread round to nearest and keep denormal numbers within a block or a function.

    Afterwards it rounds as before. Native threads always round so.
    """

    def __enter__(self) -> None:
        self._before = _native.use_float_mode()

    def __exit__(self, *_: object) -> None:
        _native.use_float_mode(self._before)

    def _recreate_cm(self) -> UsualFloats:
        """Return another one for each call of a function, which several threads may be in."""
        return UsualFloats()
