"""Exponentials, logarithms and rounding with identical bits on every machine and in every process.

NumPy's exponentials and logarithms differ in their last bits between processors, and math libraries differ
between systems. Any library in the process may change a thread's rounding mode.
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
    """Make this thread round to nearest and keep denormal numbers within a block or a function.

    The previous mode is restored afterwards. Native threads always use this mode.
    """

    def __enter__(self) -> None:
        self._before = _native.use_float_mode()

    def __exit__(self, *_: object) -> None:
        _native.use_float_mode(self._before)

    def _recreate_cm(self) -> UsualFloats:
        """Return a new instance for each call, because several threads may run the function."""
        return UsualFloats()
