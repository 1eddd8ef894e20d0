"""Pins: blocks that are held for a time from their last use, while others go."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

__all__ = ["LONGEST", "SHARE", "Pins"]

LONGEST = 3600.0
"""The longest time, in seconds, that a block may be held after its last use."""

SHARE = 2
"""The blocks that are held take up to one part in so many of a tier."""

# Names that are held at most: a million tokens.
_MOST = 4096


class _Pin(Struct, frozen=True):
    seconds: float
    until: float


class Pins:
    """Names of blocks that are held for `seconds` from their last use, up to `LONGEST`.

    A block is held only together with all before it: names come as chains, from a first block on. `clock`
    tells the time, which may be set back: then a block is held for its seconds from now at most.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        # Those that were used last at the end, each one before those that it stands behind.
        self._pins: OrderedDict[bytes, _Pin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def hold(self, chain: Sequence[bytes], seconds: float) -> None:
        """Hold the blocks of a chain, which are used now. What was held for longer still is."""
        now = self.clock()
        for name in reversed(chain):
            longest = min(LONGEST, max(seconds, self._seconds(name, now)))
            self._pins[name] = _Pin(longest, now + longest)
            self._pins.move_to_end(name)
        while len(self._pins) > _MOST:
            self._pins.popitem(last=False)

    def refresh(self, chain: Sequence[bytes]) -> None:
        """Count the blocks of a chain as used now: those that are held are held for their time again."""
        if not self._pins:
            return
        now = self.clock()
        for name in reversed(chain):
            seconds = self._seconds(name, now)
            if seconds:
                self._pins[name] = _Pin(seconds, now + seconds)
                self._pins.move_to_end(name)

    def seconds(self, name: bytes) -> float:
        """Return for how long a block is held from its last use; 0 for one that is not. For any thread."""
        return self._seconds(name, self.clock())

    def held(self, num_bytes: Callable[[bytes], int], most: int) -> set[bytes]:
        """Return the names that are held now, `most` bytes of blocks: the oldest pins do not count beyond it.

        `num_bytes` returns the size of a block, 0 for one that is not there.
        """
        now, total = self.clock(), 0
        found: set[bytes] = set()
        for name, pin in reversed(self._pins.items()):
            if pin.until > now + pin.seconds:  # the clock was set back
                self._pins[name] = _Pin(pin.seconds, now + pin.seconds)
            if self._seconds(name, now):
                total += num_bytes(name)
                if total > most:
                    break
                found.add(name)
        return found

    def _seconds(self, name: bytes, now: float) -> float:
        pin = self._pins.get(name)
        return 0.0 if pin is None or pin.until <= now else pin.seconds
