"""Bodies of requests: read within limits of time and memory, and parsed without blocking the event loop.

A body of 60 MB may take much more memory once it is parsed. Therefore large bodies share a budget of memory.
Each body takes memory from it as its bytes arrive, and returns it when the request ends. Large bodies are
parsed in a thread.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from chaski.errors import OptionError
from chaski.formats.bounded_json import TooManyValuesError, take_json
from chaski.server.network.arrivals import Arrivals
from chaski.server.network.budget import Budget, Share, TooLargeError
from chaski.server.network.jsons import HALF, MAX_BODY, MAX_VALUES, without_halves

__all__ = ["MAX_BODY", "Bodies", "load_object"]

T = TypeVar("T")

_SMALL = 1 << 16
"""Largest size in bytes of a body that is parsed at once and takes nothing from the budget."""
_OBJECT_BYTES = 64
"""Average size in bytes of a parsed value, without its text."""
# Escapes that may stand for half of a surrogate pair.
_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Bodies:
    """Reader of the bodies of requests. Use it in one event loop only.

    memory        bytes that large bodies may take together, from their first byte to the end of the request
    idle_seconds  longest wait for the next piece of a body
    """

    def __init__(self, memory: int, idle_seconds: float) -> None:
        self._arrivals = Arrivals()
        self._budget = Budget(memory, self._arrivals.interrupt_slowest)
        self._idle_seconds = idle_seconds
        # A single thread, since parsing a text with one wide letter temporarily takes eight times its size.
        self._parser = ThreadPoolExecutor(1, "chaski-body")

    @asynccontextmanager
    async def read(
        self, scope: Scope, receive: Receive, most: int = MAX_BODY, list_name: str | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Read the JSON object of a request, and hold its memory until the block ends.

        most: largest size of the body in bytes
        list_name: name of the only field of the object if the body is a list; None to refuse lists

        Raises TooLargeError, SlowBodyError, BusyError if other requests occupy the memory, and OptionError if
        the body is not a JSON object.
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
        """Call a function that processes a request's body, in the parser's thread if the body is large."""
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
        """Stop the parser's thread."""
        self._parser.shutdown(wait=False, cancel_futures=True)


def _too_long(what: str, most: int) -> TooLargeError:
    return TooLargeError(f"the body of the request {what}; at most {most} bytes are allowed here")


def _parsed(data: bytearray, list_name: str | None) -> Mapping[str, Any]:
    try:
        return load_object(data, list_name)
    except TooManyValuesError as error:
        raise TooLargeError(str(error)) from None


def _parsed_and_weighed(data: bytearray, list_name: str | None) -> tuple[Mapping[str, Any], int]:
    """Parse a body. Returns the object and the estimated size of its values in bytes."""
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


def load_object(data: bytearray, list_name: str | None = None) -> Mapping[str, Any]:
    """Return the object that a body holds, or that a list stands for as its only field `list_name`.

    The body is empty afterwards, since a large one should not be in memory next to its values. Half of a
    surrogate pair in a string becomes U+FFFD. Raises OptionError for anything else than an object, numbers
    that are none or beyond the largest float, and two names that become the same; TooManyValuesError.
    """
    if not data or data.isspace():
        raise OptionError("missing request body")
    may_have_halves = _MAY_BE_HALF.search(data) is not None
    try:
        found = take_json(data, MAX_VALUES)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"invalid JSON: {error}") from None
    if list_name is not None and isinstance(found, list):
        found = {list_name: found}
    if not isinstance(found, dict):
        raise OptionError(f"the request must be a JSON object, not {type(found).__name__}")
    if may_have_halves:
        _replace_halves(found)
    return found


class _Place(Struct):
    """A container of a body, with the place that it has in another one."""

    value: dict[str, Any] | list[Any]
    around: _Place | None = None
    key: str | int = ""

    def __str__(self) -> str:
        """The path, such as `messages[0].content`; empty for the whole body."""
        keys, place = [], self
        while place.around is not None:
            keys.append(f"[{place.key}]" if isinstance(place.key, int) else f".{place.key:.80}")
            place = place.around
        return "".join(reversed(keys)).removeprefix(".")


def _replace_halves(value: dict[str, Any]) -> None:
    """Replace halves of surrogate pairs in a value and everything inside by U+FFFD, as Go's decoder does.

    UTF-8 cannot hold them. Raises OptionError where two names of an object become the same.
    """
    pending = [_Place(value)]
    while pending:
        place = pending.pop()
        container: Any = place.value
        if isinstance(container, dict):
            if any(map(HALF.search, container)):
                _rename(container, place)
            parts: Iterable[tuple[Any, Any]] = container.items()
        else:
            parts = enumerate(container)
        for key, inner in parts:
            if isinstance(inner, str):
                if HALF.search(inner):
                    container[key] = without_halves(inner)
            elif isinstance(inner, dict | list):
                pending.append(_Place(inner, place, key))


def _rename(container: dict[str, Any], place: _Place) -> None:
    renamed: dict[str, Any] = {}
    for name, inner in container.items():
        whole = without_halves(name)
        if whole in renamed:
            raise OptionError(
                f"two names in {str(place) or 'the request'} differ only in halves of surrogate pairs, which "
                f"become U+FFFD: {whole:.80}; give each a name of valid Unicode"
            )
        renamed[whole] = inner
    container.clear()
    container.update(renamed)
