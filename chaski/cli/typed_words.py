"""Tab completion in a chat: commands with their arguments, and file paths."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

__all__ = ["Words", "completions", "paths", "unescaped"]

Names: TypeAlias = Callable[[str], Iterable[str]]
"""Returns the words that start with the given one."""

Words: TypeAlias = Mapping[str, "Words | Names | None"]
"""Possible words, each with the words that may follow it."""

_PATH = re.compile(r"(?:^|(?<=[\s'\"]))(?:~/|\.{0,2}/)(?:\\.|[^\s\\'\"])*$")
_BLANK = re.compile(r"([\s\\'\"])")


def completions(words: Words, text: str) -> Iterator[tuple[str, int]]:
    """Yield possible completions of a text, each with the number of characters to replace."""
    *before, begun = text.split(" ")
    known: Words | Names | None = words
    for word in before:
        known = known.get(word) if isinstance(known, Mapping) else None
    if callable(known):
        yield from ((word, len(begun)) for word in known(begun))
        return
    found = [word for word in known or () if begun and word.startswith(begun)]
    yield from ((word, len(begun)) for word in found)
    if not found and (path := _PATH.search(text)):
        yield from ((name, len(path[0])) for name in paths(path[0]))


def paths(begun: str) -> Iterator[str]:
    """Yield the paths that start with `begun`, with a slash after folders and escaped blanks."""
    folder, slash, name = unescaped(begun).rpartition("/")
    with suppress(OSError):
        entries = sorted(os.scandir(os.path.expanduser(folder + slash) or "."), key=lambda entry: entry.name)
        for entry in entries:
            is_shown = name.startswith(".") or not entry.name.startswith(".")
            if is_shown and entry.name.startswith(name) and entry.name.isprintable():
                whole = f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
                yield _BLANK.sub(r"\\\1", whole)


def unescaped(path: str) -> str:
    """Return a path without the backslashes before its blanks."""
    return re.sub(r"\\(.)", r"\1", path)
