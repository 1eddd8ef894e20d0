"""Placement of a graph's nodes: the members that compute each, and their parts of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.gguf import TensorInfo
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import Graph, KVBuffer, KVRole, Tensor, Weight

__all__ = [
    "Cut",
    "Held",
    "HeldBuffer",
    "HeldTable",
    "HeldWeight",
    "Owned",
    "Placed",
    "Splitting",
    "Units",
    "cuts",
    "joined",
    "put_joined",
]

Cut = tuple[int, int]
"""The first row, column or head that a member has, and the one after its last."""


Units = Sequence[int]
"""The members' shares of everything that is cut, as small integers: with (3, 1) the first has 3/4."""


def cuts(count: int, units: Units) -> Sequence[Cut]:
    """Cut `count` rows, columns or heads into consecutive parts, one per member, in proportion to `units`.

    Every count that is a multiple of the sum of units is cut in the same proportions.
    """
    ends = [count * end // sum(units) for end in accumulate(units, initial=0)]
    return list(pairwise(ends))


class HeldWeight(Struct, frozen=True):
    """A member's form of a weight: all of it, its part, both, or nothing."""

    whole: Weight | None = None
    part: Weight | None = None


class HeldBuffer(Struct, frozen=True):
    """Storage of the members: None for a member without it. `is_cut`: each member has some of the heads."""

    buffers: Sequence[KVBuffer | None]
    is_cut: bool


class HeldTable:
    """The members' tables of adapters, which have the same number on every member."""

    def __init__(self, number: int) -> None:
        self.number = number


class Owned(Struct, frozen=True):
    """Rows of a table that is cut. The row of an id comes from the member whose part contains the id."""

    ids: Tensor
    cuts: Sequence[Cut]


class Placed(Struct, frozen=True):
    """The place of a node.

    members  the members that compute it; each has all of the result, or its part along `axis`
    axis     the axis along which the result is cut; None if it is not cut
    needs    for each operand the axis along which a part of it is read; None if all of it is read
    has_parts  whether the node's weights are parts, like its result
    owned    the table and its cut, if the result has rows of a table that is cut
    is_late  other members compute at the same time: values that these wait for are sent before
    """

    members: Sequence[int]
    axis: int | None
    needs: Sequence[int | None]
    has_parts: bool = False
    owned: Owned | None = None
    is_late: bool = False


Held = Mapping[Weight, Sequence[HeldWeight]]
"""Each member's form of every placed weight."""


class Splitting(Protocol):
    """A split of a model over members: the places of its weights, storage and nodes."""

    @property
    def description(self) -> str:
        """A text that determines how storage is cut, for content that outlives this process."""

    def place(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[Sequence[tuple[Weight, TensorInfo]]]:
        """Distribute the weights -> each member's own weights with their tensors."""

    @property
    def held(self) -> Held:
        """The members' forms of the placed weights."""

    @property
    def units(self) -> Units:
        """Each member's share of everything that is cut."""

    def heads(self, role: KVRole, heads: int, layer: int | None) -> Sequence[int]:
        """Return the number of heads of a layer that each member stores."""

    def prepared(self, graph: Graph) -> Graph:
        """Return a graph with the same results whose nodes can be placed. It is the next to be placed."""

    def place_nodes(self, graph: Graph, free: FreeNodes) -> Mapping[Tensor, Placed]:
        """Place every node that is not free. Raises UnsupportedError for what cannot be split this way."""


def joined(parts: Sequence[npt.NDArray[Any]], groups: int) -> npt.NDArray[Any]:
    """Put the parts of members side by side, (rows, own width) each -> (rows, width).

    Each of the `groups` groups of columns consists of one group of every part.
    """
    if len(parts) == 1:
        return parts[0]
    found = np.empty((len(parts[0]), sum(part.shape[1] for part in parts)), parts[0].dtype)
    put_joined(found, parts, groups)
    return found


def put_joined(out: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]], groups: int) -> None:
    """Put parts (rows, own width) side by side into `out` (rows, width), in the order of `joined`."""
    rows, width = out.shape
    by_group = out.reshape(rows, groups, width // groups)
    first = 0
    for part in parts:
        own = part.reshape(rows, groups, part.shape[1] // groups)
        by_group[:, :, first : first + own.shape[2]] = own
        first += own.shape[2]
