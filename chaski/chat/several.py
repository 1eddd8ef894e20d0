"""Requests for several answers at once: the options of each, and their progress."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from chaski.errors import OptionError
from chaski.progress_bar import ProgressBar

__all__ = ["ProgressOption", "options_of_each", "progress_of", "request_list"]

ProgressOption: TypeAlias = bool | Callable[[float], None]
"""True for a bar on the standard error, or a function that is called with the done share, from 0 to 1."""


def request_list(requests: object, what: str) -> list[Any]:
    """Several prompts or conversations as a list. Raises OptionError for a single one."""
    if isinstance(requests, Iterable) and not isinstance(requests, str | bytes | Mapping):
        found = list(requests)
        if not any(isinstance(each, int | Mapping) for each in found):
            return found
    raise OptionError(f"the {what} are {requests!r:.80}; they must be a list of several")


def options_of_each(options: Mapping[str, Any], n: int, default_seed: object) -> list[Mapping[str, Any]]:
    """The options of `n` answers to one prompt: with a seed, each has the next one. Raises OptionError."""
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise OptionError(f"option n is {n!r:.40}; it must be a whole number from 1 on")
    seed = options.get("seed", default_seed)
    if not isinstance(seed, int) or count == 1:
        return [options] * count
    return [{**options, "seed": seed + index} for index in range(count)]


@contextmanager
def progress_of(option: ProgressOption, label: str) -> Iterator[Callable[[float], None]]:
    """The function to call with the done share."""
    if not isinstance(option, bool):
        yield option
        return
    bar = ProgressBar(label)
    try:
        yield bar if option else (lambda share: None)
    finally:
        bar.close()
