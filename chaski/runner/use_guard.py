"""`UseGuard`: refuses the use of a model that is closed, or that another process loaded."""

from __future__ import annotations

from chaski.errors import closed
from chaski.forks import ForkGuard

__all__ = ["UseGuard"]


class UseGuard(ForkGuard):
    """A `ForkGuard` of an object that can also be closed."""

    is_closed = False

    def close(self) -> None:
        """Refuse every use from now on."""
        self.is_closed = True

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self.is_closed:
            raise closed()

    def check(self) -> None:
        """Raise ClosedError after `close`, and ForkError in a fork."""
        self.check_open()
        super().check()
