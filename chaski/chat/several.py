"""Requests for several answers at once: the number of each, their place in errors, and their progress."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.images import ImageSource
from chaski.chat.requests import Chat, Fill, Generate
from chaski.errors import ChaskiError, OptionError
from chaski.progress_bar import ProgressBar

__all__ = [
    "ProgressOption",
    "Request",
    "check_progress",
    "each_time",
    "naming",
    "progress_of",
    "request_list",
    "suffix_list",
]

ProgressOption: TypeAlias = bool | Callable[[float], None] | None
"""True for a bar on the standard error, or a function that is called with the done share, from 0 to 1."""


class Request(Struct, frozen=True):
    """A call for an answer, and the images that it counts, as the user gave them.

    place  place in a list of several, as an error names it; empty for a call that comes alone
    """

    call: Generate | Chat | Fill
    images: Sequence[ImageSource] = ()
    place: str = ""

    def naming(self) -> AbstractContextManager[None]:
        """Name the place in errors that are raised within."""
        return naming(self.place)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Name a place in errors that are raised within; nothing for an empty one."""
    try:
        yield
    except ChaskiError as error:
        if not place:
            raise
        named = copy(error)  # several readers may get the same error
        named.args = (f"{place}: {error}", *error.args[1:])
        raise named from None


def request_list(requests: object, what: str) -> list[Any]:
    """Several prompts or conversations as a list. Raises OptionError for a single one."""
    if isinstance(requests, Iterable) and not isinstance(requests, str | bytes | Mapping):
        found = list(requests)
        if not any(isinstance(each, int | Mapping) for each in found):
            return found
    raise OptionError(f"the {what} are {requests!r:.80}; they must be a list of several")


def suffix_list(suffix: str | Sequence[str], count: int) -> list[str]:
    """Return the suffix of each of `count` prompts, from one for all or a list. Raises OptionError."""
    if isinstance(suffix, str):
        return [suffix] * count
    found = request_list(suffix, "suffixes")
    if len(found) != count:
        raise OptionError(f"there are {len(found)} suffixes and {count} prompts; give one suffix for each")
    return found


def each_time(requests: Sequence[Request], n: int, what: str) -> list[Request]:
    """Every request `n` times in turn, with its place, counted from 0. Raises OptionError."""
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise OptionError(f"option n is {n!r:.40}; it must be a whole number from 1 on")
    return [
        Request(replace(request.call, draw=draw), request.images, f"{what} {index}")
        for index, request in enumerate(requests)
        for draw in range(count)
    ]


def check_progress(option: object) -> None:
    """Raise OptionError for a value that is no `ProgressOption`."""
    if not (option is None or isinstance(option, bool) or callable(option)):
        raise OptionError(
            f"progress is {option!r:.40}; it must be True for a bar, False, or a function of the done share"
        )


@contextmanager
def progress_of(option: ProgressOption, label: str) -> Iterator[Callable[[float], None]]:
    """The function to call with the done share. Raises OptionError for another value."""
    check_progress(option)
    if callable(option):
        yield option
        return
    bar = ProgressBar(label)
    try:
        yield bar if option else (lambda share: None)
    finally:
        bar.close()
