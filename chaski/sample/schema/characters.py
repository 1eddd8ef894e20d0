"""Sets of characters, as classes of regular expressions.

A set is a sorted tuple of ranges (first, last) of code points that do not touch. Surrogates are in no set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

__all__ = [
    "ANY",
    "DIGITS",
    "DOT",
    "SPACES",
    "WORD",
    "Ranges",
    "class_items",
    "complement",
    "contains",
    "folded",
    "union",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_MOST_FOLDED = 4096


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the set of all characters in `ranges`, which may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(part for piece in found for part in _without_surrogates(*piece))


def complement(ranges: Ranges) -> Ranges:
    """Return the set of all characters that are not in `ranges`."""
    found, begin = [], 0
    for first, last in sorted([*ranges, _SURROGATES]):
        if begin < first:
            found.append((begin, first - 1))
        begin = max(begin, last + 1)
    if begin <= _LAST:
        found.append((begin, _LAST))
    return union(found)


def contains(ranges: Ranges, code: int) -> bool:
    """Return whether a set contains a code point."""
    return any(first <= code <= last for first, last in ranges)


def folded(ranges: Ranges) -> Ranges:
    """Return the set with the other case of its letters; sets of thousands of letters stay as they are."""
    found = list(ranges)
    for first, last in ranges:
        if last - first < _MOST_FOLDED:
            variants = (case for code in range(first, last + 1) for case in _cases(chr(code)))
            found += ((ord(case), ord(case)) for case in variants if len(case) == 1)
    return union(found)


def class_items(ranges: Iterable[tuple[int, int]]) -> str:
    """Return the ranges of a set in the notation of a character class."""
    return "".join(
        rf"\x{{{first:X}}}" if first == last else rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges
    )


def _cases(letter: str) -> tuple[str, str]:
    return letter.lower(), letter.upper()


def _without_surrogates(first: int, last: int) -> Iterable[tuple[int, int]]:
    low, high = _SURROGATES
    if last < low or first > high:
        yield first, last
        return
    if first < low:
        yield first, low - 1
    if last > high:
        yield high + 1, last


def _of(text: str) -> Ranges:
    return union((ord(letter), ord(letter)) for letter in text)


ANY: Ranges = complement(())
DIGITS = union([(0x30, 0x39)])
WORD = union([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACES = union([(0x2000, 0x200A), *_of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff")])
DOT = complement(_of("\n\r\u2028\u2029"))
