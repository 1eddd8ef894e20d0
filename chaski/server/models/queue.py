"""`FairQueue`: requests that wait for a model. Clients take turns; a client's requests keep their order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from chaski.errors import BusyError

__all__ = ["FairQueue"]

_Turn = asyncio.Future[None]


class FairQueue:
    """Places, and a bounded queue of requests that wait for one. Use it in one event loop only."""

    def __init__(self, places: int, limit: int) -> None:
        self._places = self._free = places
        self._limit = limit
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()

    def resize(self, places: int) -> None:
        """Change the number of places. If more are in use, the excess disappears as they are given back."""
        self._free += places - self._places
        self._places = places
        while self._free > 0 and self._hand_over():
            self._free -= 1

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(map(len, self._lines.values()))

    async def enter(self, client: str) -> None:
        """Take a place, or wait for one; `leave` gives it back. Raises BusyError if too many wait."""
        if self._free > 0 and not self._lines:
            self._free -= 1
            return
        if self.waiting >= self._limit:
            raise BusyError("server busy, please try again.  maximum pending requests exceeded")
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(client, turn)
            raise

    def leave(self) -> None:
        """Give the place back. If clients wait, it goes to the client whose turn it is."""
        if self._free < 0 or not self._hand_over():
            self._free += 1

    def _hand_over(self) -> bool:
        """Give a place to the client whose turn it is; return whether any request waits."""
        while self._lines:
            client, line = next(iter(self._lines.items()))
            turn = line.popleft()
            is_waiting = not turn.cancelled()  # a cancelled request has not noticed it yet
            if is_waiting:
                turn.set_result(None)
                # A client with more requests moves after the other clients.
                self._lines.move_to_end(client)
            self._drop_empty(client)
            if is_waiting:
                return True
        return False

    def _give_up(self, client: str, turn: _Turn) -> None:
        if not turn.cancelled():
            self.leave()  # the request got its place at the same moment
            return
        if turn in self._lines.get(client, ()):
            self._lines[client].remove(turn)
            self._drop_empty(client)

    def _drop_empty(self, client: str) -> None:
        if not self._lines[client]:
            del self._lines[client]
