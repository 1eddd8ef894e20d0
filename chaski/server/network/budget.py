"""`Budget`: a number of bytes that large requests share, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from chaski.errors import BusyError, OptionError

__all__ = ["Budget", "Share", "TooLargeError"]

_WAIT_SECONDS = 30.0
"""Longest time in seconds for which a large body waits for memory."""
_LOOK_SECONDS = 0.5
"""Seconds between two attempts to interrupt slow bodies."""
_STEP = 1 << 16
"""Unit in which shares grow, in bytes."""


class TooLargeError(OptionError):
    """The body has more bytes or values than allowed."""


class Share(Struct, eq=False):
    """The bytes of the budget that one request holds."""

    budget: Budget
    size: int = 0

    async def grow(self, size: int) -> None:
        """Grow to at least `size` bytes, and wait for them if necessary. Raises TooLargeError, BusyError."""
        if size > self.size:
            self.budget.check(size)
            wanted = min(-(-size // _STEP) * _STEP, self.budget.size)
            await self.budget.take(self, wanted - self.size)

    def become(self, size: int) -> None:
        """Change the share to `size` bytes at once. Raises TooLargeError, BusyError."""
        self.budget.check(size)
        self.budget.take_now(size - self.size)
        self.size = size


class Budget:
    """Bytes that the bodies of requests may take together. Use it in one event loop only.

    make_room  function that interrupts a slow body, and returns whether there was one
    """

    def __init__(self, size: int, make_room: Callable[[], bool]) -> None:
        self.size = size
        self._free = size
        self._make_room = make_room
        self._shares: dict[Share, None] = {}
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield an empty share, and return its bytes to the budget at the end of the block."""
        share = Share(self)
        self._shares[share] = None
        try:
            yield share
        finally:
            del self._shares[share]
            self._free += share.size
            self._serve()

    def check(self, size: int) -> None:
        """Raise TooLargeError if the whole budget has fewer than `size` bytes."""
        if size > self.size:
            raise TooLargeError(f"the request takes {size} bytes of memory; at most {self.size} are allowed")

    def take_now(self, size: int) -> None:
        """Take `size` bytes at once, or return them if negative. Raises BusyError."""
        if size > self._free:
            raise _busy()
        self._free -= size
        self._serve()

    async def take(self, share: Share, size: int) -> None:
        """Add `size` bytes to a share as soon as they are free. Raises BusyError after `_WAIT_SECONDS`."""
        if not self._waiting and size <= self._free:
            self._give(share, size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, size, turn))
        if self._timer is None:
            self._relieve()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await asyncio.wait((turn,))
        except TimeoutError:
            if not turn.done():
                raise _busy() from None
        finally:
            # Bytes that the share received in the meantime are returned with it.
            turn.cancel()
            self._serve()
        turn.result()

    def _give(self, share: Share, size: int) -> None:
        self._free -= size
        share.size += size

    def _serve(self) -> None:
        while self._waiting:
            share, size, turn = self._waiting[0]
            if turn.done():  # the request no longer waits
                self._waiting.popleft()
            elif size <= self._free:
                self._waiting.popleft()
                self._give(share, size)
                turn.set_result(None)
            else:
                return

    def _relieve(self) -> None:
        """Interrupt slow bodies, or the last one if all wait for memory that the others hold.

        This is done again and again while requests wait: once for all of them, so that many cost little.
        """
        turns = [(share, turn) for share, _, turn in self._waiting if not turn.done()]
        self._timer = None
        if not turns:
            return
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._relieve)
        has_made_room = False
        for _ in turns:
            if not self._make_room():
                break
            has_made_room = True
        if has_made_room:
            return
        held = [turn for share, turn in turns if share.size]
        if len(held) > 1 and len(held) == sum(share.size > 0 for share in self._shares):
            held[-1].set_exception(_busy())


def _busy() -> BusyError:
    return BusyError("server busy: too many large requests at once; try again later")
