"""Random re-wordings of a question, so that the guide understands new wordings.

It uses rules, not a model: sentence forms, synonyms, fillers, lost words, typing errors, case and
punctuation. The meaning is usually kept, and a little noise does no harm.
"""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path

__all__ = ["LEXICON", "reword"]

_DATA = tomllib.loads((Path(__file__).parent / "rewording.toml").read_text())
_FORMS: list[tuple[re.Pattern[str], list[str]]] = [
    (re.compile(pattern), sentence["forms"].splitlines())
    for sentence in _DATA["sentences"]
    for pattern in sentence["patterns"]
]
_SYNONYMS: list[tuple[re.Pattern[str], list[str]]] = [
    (re.compile(rf"\b{re.escape(first)}\b"), others)
    for first, *others in (line.split(", ") for line in _DATA["words"]["synonyms"].splitlines())
]
_OPENERS: list[str] = _DATA["words"]["openers"].splitlines()
_CLOSERS: list[str] = _DATA["words"]["closers"].splitlines()
_SMALL_WORDS = frozenset(_DATA["words"]["small"].split())

LEXICON = " ".join(
    [form.replace("{}", "") for _, forms in _FORMS for form in forms]
    + [word for _, words in _SYNONYMS for word in words]
    + _OPENERS
    + _CLOSERS
)


def reword(question: str, rng: random.Random) -> str:
    """Return a random re-wording; about one in seven changes only the case."""
    text = question.strip()
    if rng.random() < 0.15:
        return _letter_case(text, rng)
    text = text.rstrip("?.! ").lower()
    if rng.random() < 0.5:
        text = _form(text, rng)
    if rng.random() < 0.6:
        text = _synonyms(text, rng)
    if len(text.split()) > 2:
        text = _lose_words(text, rng)
    if rng.random() < 0.25:
        text = _fill(text, rng)
    if rng.random() < 0.2:
        text = _mistype(text, rng)
    mark = rng.choice(("", "", "?", "?", "?", ".", "!", " ?", "??")) if len(text) > 1 else ""
    return _letter_case(text + mark, rng)


def _form(text: str, rng: random.Random) -> str:
    for pattern, forms in _FORMS:
        if match := pattern.fullmatch(text):
            return rng.choice(forms).replace("{}", match[1])
    return text


def _synonyms(text: str, rng: random.Random) -> str:
    found = [(pattern, words) for pattern, words in _SYNONYMS if pattern.search(text)]
    for pattern, words in rng.sample(found, min(len(found), rng.choice((1, 1, 2, 3)))):
        text = pattern.sub(rng.choice(words), text, count=1)
    return text


def _lose_words(text: str, rng: random.Random) -> str:
    """Drop small words often and others rarely; sometimes swap two neighbours."""
    words = text.split()
    small_loss, loss = (0.15, 0.03 if len(words) > 5 else 0.0) if rng.random() < 0.5 else (0.0, 0.0)
    kept = [w for w in words if rng.random() >= (small_loss if w in _SMALL_WORDS else loss)] or words
    if len(kept) > 3 and rng.random() < 0.05:
        at = rng.randrange(len(kept) - 1)
        kept[at : at + 2] = reversed(kept[at : at + 2])
    return " ".join(kept)


def _fill(text: str, rng: random.Random) -> str:
    if rng.random() < 0.6:
        text = f"{rng.choice(_OPENERS)}{rng.choice((' ', ' ', ', '))}{text}"
    return f"{text} {rng.choice(_CLOSERS)}" if rng.random() < 0.5 else text


def _mistype(text: str, rng: random.Random) -> str:
    """Make one typing error in a longer word: letters swapped, lost, doubled or wrong."""
    words = text.split()
    long_words = [i for i, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if not long_words:
        return text
    which = rng.choice(long_words)
    word = words[which]
    at = rng.randrange(len(word) - 1)
    slips = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[:at] + word[at] + word[at:],
        word[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[at + 1 :],
    )
    words[which] = rng.choice(slips)
    return " ".join(words)


def _letter_case(text: str, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.5:
        return text.lower()
    if chance < 0.53:
        return text.upper()
    return text[:1].upper() + text[1:] if chance < 0.85 else text
