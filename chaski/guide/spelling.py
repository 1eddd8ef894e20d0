"""Correction of typing errors: a misspelled word becomes the known word that is one error away."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Iterator

__all__ = ["known_words", "spelled"]

# Shorter words are one error away from too many other words. Two swapped letters are a stronger sign of an
# error.
_SHORTEST, _SHORTEST_SWAPPED = 5, 4
# A longer text is not a word. Only this many words of a question are checked, since checking more would take
# too long.
_LONGEST, _MOST_WORDS = 24, 100
_SPACE = "Ġ"


def known_words(tokens: Iterable[str]) -> frozenset[str]:
    """Return the words of a byte-level vocabulary in lower case. These are its tokens that begin with a
    space.
    """
    begun = (token.removeprefix(_SPACE) for token in tokens if token.startswith(_SPACE))
    return frozenset(word for word in begun if word.isascii() and word.isalpha())


def spelled(text: str, words: Collection[str]) -> str:
    """Return a text in lower case in which known words replace words that are one typing error away.

    An error swaps two neighboring letters, or drops or adds a letter after the first one. A wrong letter is
    not corrected, since too many unknown words differ from a known one by one letter. Very long words and all
    words after the first hundred are not corrected either.
    """
    return re.sub(r"[a-z]+", lambda match: _meant(match[0], words), text, count=_MOST_WORDS)


def _meant(word: str, words: Collection[str]) -> str:
    if not _SHORTEST_SWAPPED <= len(word) <= _LONGEST or word in words:
        return word
    near = (
        _swapped(word) if len(word) < _SHORTEST else (*_swapped(word), *_completed(word), *_shortened(word))
    )
    return next((other for other in near if other in words), word)


def _swapped(word: str) -> Iterator[str]:
    for at in range(1, len(word)):
        yield word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]


def _completed(word: str) -> Iterator[str]:
    """Yield the word with one letter added."""
    for at in range(1, len(word) + 1):
        for letter in string.ascii_lowercase:
            yield word[:at] + letter + word[at:]


def _shortened(word: str) -> Iterator[str]:
    for at in range(1, len(word)):
        yield word[:at] + word[at + 1 :]
