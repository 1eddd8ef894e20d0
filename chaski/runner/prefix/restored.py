"""The report on a prefix that came back."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["NOTHING_RESTORED", "Restored"]


class Restored(Struct, frozen=True):
    """Tokens of a prompt that came back from `memory` and from `disk` in `seconds`, and what time that saved.

    The saved time is that of computing them, by the speed so far, less the time that restoring took. The
    tokens are those at `positions`.
    """

    memory: int = 0
    disk: int = 0
    seconds: float = 0.0
    saved_seconds: float = 0.0
    positions: range = range(0)


NOTHING_RESTORED = Restored()
