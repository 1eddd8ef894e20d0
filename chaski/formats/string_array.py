"""String arrays of a mapped GGUF file: found quickly, decoded only when they are used.

GGUF stores an array of strings as a run of (length: uint64, bytes) pairs, so the end of the array is known
only after every length was read. A vocabulary with its merges has 400,000: too many for a Python loop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

_PREFIX_BYTES = 8
_WINDOW_BYTES = 1 << 17  # fits the second-level cache with its temporaries
_PLAIN_STEPS = 512
_read_length = struct.Struct("<Q").unpack_from


class StringArray(Sequence[str]):
    """The strings of one array, in file order; a string becomes a Python object when it is asked for.

    Bytes that are not UTF-8 decode to lone surrogates (`errors="surrogateescape"`), so that
    `text.encode("utf-8", "surrogateescape")` and `raw(index)` both give the bytes of the file.
    """

    __slots__ = ("_data", "_offsets")

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """`offsets`: the place of each length prefix in `data`, and one more for the end of the array."""
        self._data = data
        self._offsets = offsets

    @classmethod
    def of(cls, strings: Iterable[str]) -> StringArray:
        """Python strings with the interface of strings in a file."""
        raw = [text.encode("utf-8", "surrogateescape") for text in strings]
        stored = b"".join(len(text).to_bytes(_PREFIX_BYTES, "little") + text for text in raw)
        ends = np.cumsum([0, *(_PREFIX_BYTES + len(text) for text in raw)], dtype=np.int64)
        return cls(np.frombuffer(stored, np.uint8), ends)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes that the strings are in."""
        return self._data

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The place of each string's length in `data`, and that of the end of the array."""
        return self._offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"

    def first(self, count: int) -> StringArray:
        """The strings below index `count`; nothing is decoded."""
        return StringArray(self._data, self._offsets[: count + 1])

    def raw(self, index: int) -> bytes:
        """Return the bytes of string `index`; negative indices count from the end."""
        position = range(len(self))[index]
        begin = int(self._offsets[position]) + _PREFIX_BYTES
        return self._data[begin : int(self._offsets[position + 1])].tobytes()

    def tolist(self) -> list[str]:
        """Decode every string, well below a microsecond each."""
        begin = self._offsets[0]
        blob = self._data[begin : self._offsets[-1]].tobytes()
        places = (self._offsets - begin).tolist()
        return [blob[a + _PREFIX_BYTES : b].decode("utf-8", "surrogateescape") for a, b in pairwise(places)]

    def beginning_as(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ascending indices of strings with the byte length and first byte of one of `texts`.

        They hold every string that equals one of them, and few others. None of `texts` is empty.
        """
        wanted = {(len(raw), raw[0]) for raw in (text.encode() for text in texts)}
        lengths = np.diff(self._offsets) - _PREFIX_BYTES
        filled = np.flatnonzero(lengths)
        firsts = self._data[self._offsets[filled] + _PREFIX_BYTES]
        signs = lengths[filled] * 256 + firsts
        return filled[np.isin(signs, [length * 256 + first for length, first in wanted])]


def find_strings(data: NDArray[np.uint8], start: int, count: int) -> NDArray[np.int64]:
    """Return the offsets in `data` of `count` length-prefixed strings from `start` on, and that of their end.

    When a string reaches past the end of `data` the result is shorter than `count + 1`, and its last element
    is the offset of that string. The result is reserved at once: the caller has checked that `count` is sane.
    """
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = start
    done = 0
    while done < count:
        place, remaining = int(offsets[done]), count - done
        ends = _follow_window(data, place, remaining)
        # Windows that an unusual string ends early cost more than they save; hostile files consist of these.
        if len(ends) < min(remaining, _PLAIN_STEPS):
            ends = _follow_plainly(data, place, remaining)
        if len(ends) == 0:
            break
        offsets[done + 1 : done + 1 + len(ends)] = ends
        done += len(ends)
    return offsets[: done + 1]


def _follow_window(data: NDArray[np.uint8], start: int, limit: int) -> NDArray[np.int64]:
    """Return the ends of strings from `start` on, as far as one window shows the chain of them.

    Text has no NUL bytes in practice, so six zero bytes before a non-zero byte are the upper part of a length
    below 65,536. That finds all prefixes at once; they are believed only where each string ends at the next
    prefix, which makes the chain from `start` the same that a plain walk finds.
    """
    window = data[start : start + _WINDOW_BYTES]
    zero = window == 0
    pair = zero[:-1] & zero[1:]
    prefixes = np.flatnonzero(pair[2:-5] & pair[4:-3] & pair[6:-1] & ~zero[8:])
    if prefixes.size == 0 or prefixes[0] != 0:
        return prefixes[:0]
    lengths = window[prefixes] + (window[prefixes + 1].astype(np.int64) << 8)
    ends = prefixes + _PREFIX_BYTES + lengths
    breaks = np.flatnonzero(ends[:-1] != prefixes[1:])
    linked = int(breaks[0]) + 1 if breaks.size else len(ends)
    ends = ends[: min(linked, limit)] + start
    return ends if ends[-1] <= len(data) else ends[:-1]


def _follow_plainly(data: NDArray[np.uint8], start: int, limit: int) -> NDArray[np.int64]:
    """Return the ends of up to a few hundred strings from `start` on, read one by one."""
    ends: list[int] = []
    view = data.data
    size = len(view)
    end = start
    for _ in range(min(limit, _PLAIN_STEPS)):
        if end + _PREFIX_BYTES > size:
            break
        end += _PREFIX_BYTES + _read_length(view, end)[0]
        if end > size:
            break
        ends.append(end)
    return np.array(ends, np.int64)
