"""The cells that each token of a batch sees, and their division between thread blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.cuda.lowering import (
    Derived,
    Lowering,
    Made,
    Sizes,
    Staged,
    sequences_of,
    tasks_of,
    tiles_of,
)
from chaski.ml.graph import Dim, Tensor

__all__ = [
    *("APART", "CHUNK", "WHOLE", "Seen", "seen_in_history", "seen_of_chosen", "tasks_of_tokens"),
    "tiles_of_tokens",
]

I32 = npt.NDArray[np.int32]
Inputs = Mapping[str, npt.NDArray[Any]]

CHUNK = 256
# Up to `_FEW` tokens are computed by chunks; up to `_MOST`, if few of them are neighbours.
_FEW, _MOST = 32, 256
_NO_PAIRS = np.empty((0, 2), np.int32)
# The size of `Seen.forms`. It distinguishes recordings of the two forms.
WHOLE, APART = 1, 2


class Seen(Struct, frozen=True, eq=False):
    """The spans of tokens in a list of cells, which layers with the same mask share."""

    name: str
    mask: Tensor
    spans: Tensor | Staged
    make: Callable[[Inputs], I32]
    """Returns the spans from the inputs."""
    longest: int
    """The most entries that few tokens see together."""
    is_shared: bool = True
    """Whether neighbours of one sequence see the same list."""

    @property
    def most_tokens(self) -> int:
        tokens = self.mask.shape[0]
        assert isinstance(tokens, Dim)
        return tokens.maximum

    @property
    def most_apart(self) -> int:
        """The most tokens whose chunks have separate thread blocks."""
        return min(self.most_tokens, _MOST)

    @property
    def tasks(self) -> str:
        """The name of the dimension of chunks."""
        return f"tasks of {self.name}"

    @property
    def forms(self) -> str:
        return f"forms of {self.name}"

    def tiles(self, neighbours: int) -> str:
        """The name of the dimension of groups of neighbours."""
        return f"tiles of {self.name} by {neighbours}"


def seen_in_history(cells: Tensor, spans: Tensor) -> Seen:
    """Return what tokens see with a mask of spans in a history."""
    history, name = cells.shape[0], spans.attributes["name"]
    assert isinstance(history, Dim)
    return Seen(name, spans, spans, lambda inputs: inputs[name], history.maximum)


def seen_of_chosen(
    lowering: Lowering, cells: Tensor, spans: Tensor, count: int, block: int, local: int
) -> Seen:
    """Return what tokens see of the `cells` (n, width) that an indexer chose from their spans."""
    width, given = cells.shape[1], spans.attributes["name"]
    assert isinstance(width, int)
    name = f"{count} blocks of {block} of {given}, {local} of them local"
    known = lowering.shared_parts.get((name, spans))
    if known is not None:
        seen: Seen = known
        return seen
    tokens = spans.shape[0]
    assert isinstance(tokens, Dim)

    def make(inputs: Inputs) -> I32:
        begin, end, _ = inputs[given].T
        lengths = end - begin
        begins = np.arange(len(lengths)) * width
        blocks = -(-lengths // block) if local else lengths // block
        chosen = lengths - np.maximum(blocks - count, 0) * block
        return np.stack([begins, begins + chosen, np.zeros_like(begins)], axis=1).astype(np.int32)

    staged = Staged(tokens.maximum, 3, np.int32)
    lowering.derived.append(Derived((staged,), lambda inputs, _: ((make(inputs),), {})))
    longest = min(tokens.maximum, _FEW) * width
    found = Seen(name, spans, staged, make, longest, is_shared=False)
    lowering.shared_parts[name, spans] = found
    return found


def tasks_of_tokens(lowering: Lowering, seen: Seen) -> tuple[Staged, Staged]:
    """Return the chunks that tokens see, which all layers share: tasks, and the first task of each token.

    They are empty if thread blocks read whole histories. That is so for many neighbours, and for tokens with
    more chunks than a buffer has room for, such as a few tokens with one long history.
    """
    known = lowering.shared_parts.get((seen.tasks, seen.mask))
    if known is not None:
        found: tuple[Staged, Staged] = known
        return found
    most = seen.most_apart
    dim, forms = seen.tasks, seen.forms
    room = lowering.dims[dim] = seen.longest // CHUNK + 2 * most
    lowering.dims[forms] = APART
    lowering.forms.add(forms)
    tasks = Staged(room, 2, np.int32)
    starts = Staged(most + 1, 1, np.int32)

    def make(inputs: Inputs, _: Sizes) -> Made:
        given = seen.make(inputs)
        if len(given) <= _FEW or (len(given) <= most and 2 * sequences_of(given) > len(given)):
            made = tasks_of(given, CHUNK)
            if len(made[0]) <= room:
                return made, {dim: len(made[0]), forms: APART}
        return (_NO_PAIRS, _NO_PAIRS), {dim: 0, forms: WHOLE}

    lowering.derived.append(Derived((tasks, starts), make))
    lowering.shared_parts[seen.tasks, seen.mask] = tasks, starts
    return tasks, starts


def tiles_of_tokens(lowering: Lowering, seen: Seen, neighbours: int) -> Staged:
    """Return groups of up to `neighbours` tokens of a sequence, which all layers with this mask share."""
    dim, forms = seen.tiles(neighbours), seen.forms
    known = lowering.shared_parts.get((dim, seen.mask))
    if known is not None:
        found: Staged = known
        return found
    lowering.dims[dim] = seen.most_tokens
    tiles = Staged(seen.most_tokens, 2, np.int32)

    def make(inputs: Inputs, sizes: Sizes) -> Made:
        made = tiles_of(seen.make(inputs), neighbours) if sizes[forms] == WHOLE else _NO_PAIRS
        return (made,), {dim: len(made)}

    lowering.derived.append(Derived((tiles,), make))
    lowering.shared_parts[dim, seen.mask] = tiles
    return tiles
