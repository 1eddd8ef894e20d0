"""Extents: what a cache holds of some tokens of a sequence, to be kept outside of the cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

__all__ = ["Extent", "Span", "covered"]

Span = tuple[int, int]
"""Positions from the first to the second: of rows of tokens. A state has both at the end of its tokens."""


class Extent(Struct, frozen=True):
    """Rows of tokens at positions `begin` to `end`, or the state after the first `end` tokens.

    Rows have a cell for each token. A state has one cell, and `begin` is `end`; `ends_prompt` is True for the
    one at the end of a prompt.
    """

    begin: int
    end: int
    cells: npt.NDArray[np.int32]
    ends_prompt: bool = False

    @property
    def is_state(self) -> bool:
        """True for a state."""
        return self.begin == self.end


def covered(spans: Sequence[Span], begin: int, end: int) -> bool:
    """Return whether rows of all tokens at positions `begin` to `end` are in `spans`, which ascend."""
    for first, last in reversed(spans):
        if end <= begin:
            break
        if first < end <= last:
            end = first
    return end <= begin
