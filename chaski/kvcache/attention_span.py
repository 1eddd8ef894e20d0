"""Attention spans: how far back tokens see, and how much of a sequence is kept. There is no storage here."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

__all__ = ["AttentionSpan"]


class AttentionSpan(Struct, frozen=True):
    """The part of its own sequence that a token sees in a layer; by default all up to itself.

    window  how many tokens a token sees, itself included (the meaning of the models' papers; the reference
            engine shows one more)
    chunk   positions are cut into chunks of this length, and a token sees its own chunk only
    memory  how many tokens of a sequence are kept between batches, at least as many as are visible: with
            more, a shorter prefix can be resumed; None is the window, and without a window all
    ahead   how many tokens after itself a token of a group sees at most; None is all of the group
    hidden  how many tokens at the beginning of a sequence no other token sees
    is_previous  a token sees the one before it and nothing else; the first one sees itself
    """

    window: int | None = None
    chunk: int | None = None
    memory: int | None = None
    ahead: int | None = None
    hidden: int | None = None
    is_previous: bool = False

    def __post_init__(self) -> None:
        visible = self.visible
        if visible is not None and visible <= 0:  # the file defines the number
            raise ValueError(f"{self!r} shows nothing")
        assert self.memory is None or (visible is not None and self.memory >= visible), (
            f"{self!r} keeps less than tokens see"
        )

    @property
    def visible(self) -> int | None:
        """The most tokens that a token sees; None without a limit."""
        return min((limit for limit in (self.window, self.chunk) if limit is not None), default=None)

    def kept(self, capacity: int) -> int | None:
        """The number of tokens kept of sequences of up to `capacity` tokens; None for all of them."""
        memory = self.window if self.memory is None else self.memory
        return None if memory is None or memory >= capacity else memory

    def __str__(self) -> str:
        if self.is_previous:
            return "the token before"
        values = {name: value for name, value in asdict(self).items() if value is not None}
        del values["is_previous"]
        hidden = values.pop("hidden", None)
        seen = ", ".join(f"{name} {value}" for name, value in values.items()) or "all tokens"
        return seen if hidden is None else f"{seen} but the first {hidden}"

    def num_cells(self, sequences: int, capacity: int, max_batch: int) -> int:
        """Cells for the kept tokens of each sequence, and where these are not all, for one batch in total."""
        kept = self.kept(capacity)
        return sequences * capacity if kept is None else sequences * kept + max_batch

    def first_visible(self, positions: Sequence[int]) -> list[int]:
        """Return the lowest position that each of `positions` sees; it never falls as positions grow."""
        if self.is_previous:
            return [max(0, position - 1) for position in positions]
        first = [0] * len(positions)
        if self.window is not None:
            before = self.window - 1
            first = [max(0, position - before) for position in positions]
        if self.chunk is not None:
            chunk = self.chunk
            first = [max(low, p - p % chunk) for low, p in zip(first, positions, strict=True)]
        if self.hidden is not None:
            hidden = self.hidden
            first = [max(low, min(hidden, p)) for low, p in zip(first, positions, strict=True)]
        return first

    def visible_ends(self, positions: Sequence[int], ends: Sequence[int]) -> Sequence[int]:
        """The position after the last one that each of `positions` sees, where groups show up to `ends`."""
        if self.is_previous:
            return [max(1, position) for position in positions]
        if self.ahead is None:
            return ends
        ahead = self.ahead + 1
        return [min(end, position + ahead) for position, end in zip(positions, ends, strict=True)]

    def last_start(self, position: int) -> int:
        """The highest position up to `position` whose token sees nothing before itself."""
        if self.visible == 1:
            return position
        return 0 if self.chunk is None else position - position % self.chunk
