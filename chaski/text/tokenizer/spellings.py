"""The spellings of a vocabulary, to find the tokens that begin at a place of a text, the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

_Text = TypeVar("_Text", str, bytes)


class Spellings(Generic[_Text]):
    """Ids by spelling. A search takes time for each length of the tokens with the same two first units."""

    def __init__(self, ids: Mapping[_Text, int]) -> None:
        self._ids: Mapping[_Text, int] = ids
        lengths: dict[_Text, set[int]] = {}
        for spelling in ids:
            if len(spelling) > 1:
                lengths.setdefault(spelling[:2], set()).add(len(spelling))
        self._lengths: dict[_Text, list[int]] = {
            begin: sorted(found, reverse=True) for begin, found in lengths.items()
        }

    def at(self, text: _Text, position: int) -> Iterator[tuple[int, int]]:
        """Yield the length and the id of each token that begins at `position`, the longest first."""
        for length in self._lengths.get(text[position : position + 2], ()):
            found = self._ids.get(text[position : position + length])
            # Near its end, the text is shorter than the token.
            if found is not None and position + length <= len(text):
                yield length, found
        single = self._ids.get(text[position : position + 1])
        if single is not None:
            yield 1, single
