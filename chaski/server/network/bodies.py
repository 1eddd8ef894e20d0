"""Bodies of requests: read in time, and parsed where that holds up nobody, in bounded memory.

A body of 60 MB may become much more once it is parsed. So large bodies share a budget of memory, from which
each takes what has arrived of it, for as long as its request lasts. They are parsed in a thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from chaski.formats.bounded_json import TooManyValuesError
from chaski.server.network.arrivals import Arrivals
from chaski.server.network.budget import Budget, Share, TooLargeError
from chaski.server.network.jsons import MAX_BODY, load_object

__all__ = ["MAX_BODY", "Bodies"]

T = TypeVar("T")

_SMALL = 1 << 16
"""Bytes of a body that is parsed at once, and that takes nothing from the budget."""
_OBJECT_BYTES = 64
"""Average bytes of a parsed value besides its text."""


class Bodies:
    """Reads bodies of requests. For one event loop.

    memory        bytes that large bodies may take together, from their first byte to the end of the request
    idle_seconds  how long the next piece of a body may take
    """

    def __init__(self, memory: int, idle_seconds: float) -> None:
        self._arrivals = Arrivals()
        self._budget = Budget(memory, self._arrivals.interrupt_slowest)
        self._idle_seconds = idle_seconds
        # One after the other: a text in which one letter is wide takes eight times its bytes meanwhile.
        self._parser = ThreadPoolExecutor(1, "chaski-body")

    @asynccontextmanager
    async def read(
        self, scope: Scope, receive: Receive, most: int = MAX_BODY, list_name: str | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Read the JSON object of a request, and hold its memory until the block ends.

        most: bytes that the body may have.

        list_name: the only field of the object that a list stands for; None where no list may come.

        Raises TooLargeError, SlowBodyError, BusyError where others take the memory, OptionError for what is
        no JSON object.
        """
        announced = Headers(scope=scope).get("content-length", "0")
        most = min(most, self._budget.size)
        if not announced.isdecimal() or int(announced[:20]) > most:
            raise _too_long(f"has {announced:.20} bytes", most)
        with self._budget.share() as share:
            data = await self._bytes(receive, share, most)
            if len(data) <= _SMALL:
                body = _parsed(data, list_name)
            else:
                loop = asyncio.get_running_loop()
                body, size = await loop.run_in_executor(self._parser, _parsed_and_weighed, data, list_name)
                share.become(size)
            yield body

    async def work_on(self, scope: Scope, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that goes through the body of a request; for a large one in the parser's thread."""
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) <= _SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._parser, function, *arguments)

    async def _bytes(self, receive: Receive, share: Share, most: int) -> bytearray:
        data = bytearray()
        with self._arrivals.enter() as arrival:
            async for piece in arrival.pieces(receive, self._idle_seconds):
                if len(data) + len(piece) > most:
                    raise _too_long("is too long", most)
                if len(data) + len(piece) > _SMALL:
                    await share.grow(len(data) + len(piece))
                data += piece
        return data

    def close(self) -> None:
        """End the parser."""
        self._parser.shutdown(wait=False, cancel_futures=True)


def _too_long(what: str, most: int) -> TooLargeError:
    return TooLargeError(f"the body of the request {what}; at most {most} bytes are taken here")


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
