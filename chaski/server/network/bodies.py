"""Bodies of requests: read in time, and parsed where that holds up nobody, in bounded memory.

A client may send a body slowly or never, and one of 60 MB may become much more once it is parsed. So pieces
have to come in time, large bodies share a budget of memory for as long as their requests last, and they are
parsed in a thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from chaski.errors import BusyError, OptionError
from chaski.formats.bounded_json import TooManyValuesError
from chaski.server.network.jsons import load_object

__all__ = ["MAX_BODY", "Bodies", "SlowBodyError", "TooLargeError", "body_pieces"]

MAX_BODY = 64 << 20
"""Bytes of a JSON body at most."""
_SMALL = 1 << 16
"""Bytes of a body that is parsed at once, and that takes nothing from the budget."""
_LEAST_RATE = 1024
"""Bytes a second that a body must have on average, not counting the wait for its first piece."""
_WAIT_SECONDS = 30.0
"""Seconds that a large body may wait for its share of the budget."""
_OBJECT_BYTES = 64
"""Average bytes of a parsed value besides its text."""


class TooLargeError(OptionError):
    """The body has more bytes, or more values, than are accepted."""


class SlowBodyError(OptionError):
    """The body did not arrive in time."""


class Bodies:
    """Reads bodies of requests. For one event loop.

    memory        bytes that large bodies may take together, from their first byte to the end of the request
    idle_seconds  how long the next piece of a body may take
    """

    def __init__(self, memory: int, idle_seconds: float) -> None:
        self._budget = _Budget(memory)
        self._idle_seconds = idle_seconds
        # One after the other: a text in which one letter is wide takes eight times its bytes meanwhile.
        self._parser = ThreadPoolExecutor(1, "chaski-body")

    @asynccontextmanager
    async def read(
        self, scope: Scope, receive: Receive, list_name: str | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Read the JSON object of a request, and hold its memory until the block ends.

        list_name: the only field of the object that a list stands for; None where no list may come.

        Raises TooLargeError, SlowBodyError, BusyError where others take the memory, OptionError for what is
        no JSON object.
        """
        announced = Headers(scope=scope).get("content-length")
        if announced is not None and (not announced.isdecimal() or int(announced[:20]) > MAX_BODY):
            raise TooLargeError(f"the request has {announced:.20} bytes; at most {MAX_BODY} are taken")
        share = _Share(self._budget)
        try:
            if announced is not None and int(announced) > _SMALL:
                await share.claim(int(announced))
            data = await self._bytes(receive, share)
            if len(data) <= _SMALL:
                body = _parsed(data, list_name)
            else:
                loop = asyncio.get_running_loop()
                body, size = await loop.run_in_executor(self._parser, _parsed_and_weighed, data, list_name)
                del data
                share.become(size)
            yield body
        finally:
            share.release()

    async def _bytes(self, receive: Receive, share: _Share) -> bytearray:
        data = bytearray()
        async for piece in body_pieces(receive, self._idle_seconds):
            data += piece
            if len(data) > MAX_BODY:
                raise TooLargeError(f"the request is too long; at most {MAX_BODY} bytes are taken")
            if len(data) > _SMALL and not share.size:
                # Nobody knows how long a body is that does not say it.
                await share.claim(MAX_BODY)
        return data

    def close(self) -> None:
        """End the parser."""
        self._parser.shutdown(wait=False, cancel_futures=True)


async def body_pieces(receive: Receive, idle_seconds: float) -> AsyncIterator[bytes]:
    """Yield the pieces of a body as they come.

    Raises SlowBodyError where one takes longer than that, or all of them are slower than anybody's line, and
    OptionError when the client leaves.
    """
    waited, length = 0.0, 0
    while True:
        began = monotonic()
        patience = min(idle_seconds, idle_seconds + length / _LEAST_RATE - waited)
        try:
            message = await asyncio.wait_for(receive(), patience)
        except TimeoutError:
            raise SlowBodyError(f"the body of the request did not come; {length} bytes are here") from None
        if message["type"] == "http.disconnect":
            raise OptionError("request canceled")
        waited += monotonic() - began
        piece = message.get("body", b"")
        length += len(piece)
        yield piece
        if not message.get("more_body", False):
            return


class _Budget:
    """A number of bytes that requests share, first come, first served."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until so many bytes are free, and take them. Raises BusyError after a while."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await asyncio.wait_for(asyncio.shield(turn), _WAIT_SECONDS)
        except BaseException as error:
            if turn.done():
                self.give_back(size)
            else:
                turn.cancel()
                self._serve()
            if isinstance(error, TimeoutError):
                raise BusyError("server busy: too many large requests at once; try again later") from None
            raise

    def take_now(self, size: int) -> None:
        """Take so many bytes at once, or raise BusyError."""
        if size > self._free:
            raise BusyError("server busy: too many large requests at once; try again later")
        self._free -= size

    def give_back(self, size: int) -> None:
        """Return so many bytes."""
        self._free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if turn.done():  # nobody waits any more
                self._waiting.popleft()
            elif size <= self._free:
                self._waiting.popleft()
                self._free -= size
                turn.set_result(None)
            else:
                return


class _Share(Struct):
    """The bytes of the budget that one request holds."""

    budget: _Budget
    size: int = 0

    async def claim(self, size: int) -> None:
        """Wait until the budget gives so many bytes."""
        if size > self.budget.size:
            raise TooLargeError(f"the request has {size} bytes; at most {self.budget.size} may be taken")
        await self.budget.take(size)
        self.size = size

    def become(self, size: int) -> None:
        """Change the share to so many bytes. Raises TooLargeError, BusyError."""
        if size > self.budget.size:
            raise TooLargeError(
                f"the request takes {size} bytes of memory; at most {self.budget.size} may be"
            )
        if size > self.size:
            self.budget.take_now(size - self.size)
        else:
            self.budget.give_back(self.size - size)
        self.size = size

    def release(self) -> None:
        """Return the whole share."""
        self.budget.give_back(self.size)
        self.size = 0


def _parsed(data: bytearray, list_name: str | None) -> Mapping[str, Any]:
    try:
        return load_object(data, list_name)
    except TooManyValuesError as error:
        raise TooLargeError(str(error)) from None


def _parsed_and_weighed(data: bytearray, list_name: str | None) -> tuple[Mapping[str, Any], int]:
    """Parse a body, and estimate the bytes that the object takes."""
    body = _parsed(data, list_name)
    return body, sum(_sizes(body))


def _sizes(value: object) -> Iterator[int]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield sys.getsizeof(item)
        elif isinstance(item, dict):
            yield sys.getsizeof(item)
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list):
            yield sys.getsizeof(item)
            pending += item
        else:
            yield _OBJECT_BYTES
