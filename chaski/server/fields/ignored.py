"""The header that names the ignored parts of a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["IGNORED_HEADER", "Ignored", "ignored_headers"]

IGNORED_HEADER = "x-chaski-ignored"
_MAX_NAMES = 40
_UNFIT = re.compile("[^ -+\\--~]")
_LONGEST_NAME = 80


class Ignored:
    """Names of ignored parts without duplicates, in the order of the request, such as `tool web_search`."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, kind: str, name: str) -> None:
        """Add a part; `name` comes from the client and may contain any character."""
        plain = _UNFIT.sub("?", name[:_LONGEST_NAME])
        # A header must not end with a space.
        self._names[f"{kind} {plain.strip() or '?'}"] = None

    def update(self, names: Iterable[str]) -> None:
        """Add names that were recorded elsewhere."""
        self._names.update(dict.fromkeys(names))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


def ignored_headers(names: Sequence[str]) -> dict[str, str]:
    """Return the header with these names; no header if there are none."""
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return {IGNORED_HEADER: ", ".join([*names[:_MAX_NAMES], *more])} if names else {}
