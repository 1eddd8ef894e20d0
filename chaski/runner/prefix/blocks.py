"""Blocks: what caches held of a run of tokens, as bytes of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.kvcache import Span
from chaski.runner.prefix import naming

__all__ = ["Block", "KnownBlock", "Part", "room_of"]

_LANES = 16


class Part(Struct, frozen=True, eq=False):
    """Rows of the tokens at positions `begin` to `end`, or a state, see `chaski.kvcache.Extent`.

    `data` (bytes,) uint8 is a block of `CellRows`, in which rows lie at the places of their positions.
    """

    begin: int
    end: int
    data: npt.NDArray[np.uint8]


class KnownBlock(Protocol):
    """A block that is referenced: its tokens begin at position `begin` and end before `end`."""

    @property
    def name(self) -> bytes: ...

    @property
    def before(self) -> bytes:
        """The name of the block before it."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def spans(self, leaf: int) -> Sequence[Span]:
        """The positions of its parts for a leaf of the cache."""


class Block(Struct, frozen=True, eq=False):
    """A block in memory. `parts` has those of each leaf of the cache."""

    name: bytes
    before: bytes
    begin: int
    tokens: tuple[int, ...]
    parts: tuple[tuple[Part, ...], ...]

    @property
    def end(self) -> int:
        return self.begin + len(self.tokens)

    @property
    def num_bytes(self) -> int:
        return sum(part.data.nbytes for parts in self.parts for part in parts)

    def spans(self, leaf: int) -> Sequence[Span]:
        return [(part.begin, part.end) for part in self.parts[leaf]]

    def all_spans(self) -> list[Sequence[Span]]:
        """Return the positions of its parts, leaf by leaf."""
        return [self.spans(leaf) for leaf in range(len(self.parts))]

    def has_all(self, wanted: Sequence[Sequence[Span]]) -> bool:
        """Return whether it has all parts that are wanted of each leaf."""
        each = zip(self.all_spans(), wanted, strict=True)
        return all(_has(spans, span) for spans, parts in each for span in parts)

    def is_beginning_of(self, other: Block) -> bool:
        """Return whether another block begins with its tokens, is longer, and has all its parts."""
        count = len(self.tokens)
        is_shorter = count < len(other.tokens)
        return is_shorter and other.tokens[:count] == self.tokens and other.has_all(self.all_spans())


def _has(spans: Sequence[Span], wanted: Span) -> bool:
    """Return whether a state is among spans, or rows are in one of them."""
    begin, end = wanted
    return wanted in spans if begin == end else any(b <= begin and end <= e for b, e in spans)


def room_of(begin: int, end: int) -> int:
    """Return the room of the `CellRows` block of a part: one place for a state, else those up to its end."""
    if begin == end:
        return 1
    in_block = (end - 1) % naming.BLOCK + 1
    return -(-in_block // _LANES) * _LANES
