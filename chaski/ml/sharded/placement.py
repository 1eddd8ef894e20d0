"""Where the nodes of a graph are computed: on which members, and which part of a result each one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.gguf import TensorInfo
from chaski.ml.graph import Graph, KVBuffer, KVRole, Operand, Tensor, Weight

__all__ = [
    "Cut",
    "FreeNodes",
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
"""The first row, column or head that a member has, and the one behind its last."""

# What every member computes for itself, where it depends on the inputs of a graph alone.
_CHEAP = ("input", "rope_table", "position_scale", "scale_rows", "reshape")


Units = Sequence[int]
"""The shares of members in what is cut, as small whole numbers: with (3, 1) the first has three quarters."""


def cuts(count: int, units: Units) -> Sequence[Cut]:
    """Cut `count` rows, columns or heads into consecutive parts, one a member, in proportion to its units.

    All numbers that are multiples of the sum are cut at the same shares of them.
    """
    ends = [count * end // sum(units) for end in accumulate(units, initial=0)]
    return list(pairwise(ends))


class HeldWeight(Struct, frozen=True):
    """A weight as a member has it: all of it, its part, both or nothing."""

    whole: Weight | None = None
    part: Weight | None = None


class HeldBuffer(Struct, frozen=True):
    """Storage of the members, None for those that have nothing; `is_cut` where each has some of the heads."""

    buffers: Sequence[KVBuffer | None]
    is_cut: bool


class HeldTable:
    """A table of adapters of the members, each of which knows its own by the same number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Owned(Struct, frozen=True):
    """Rows of a table that is cut: the row of a token is that of the member whose part has its id."""

    ids: Tensor
    cuts: Sequence[Cut]


class Placed(Struct, frozen=True):
    """The place of a node.

    members  those that compute it; each has all of the result, or its part along `axis`
    axis     along which the members have cut the result; None where they have not
    needs    for each operand the axis along which a part of it is read; None where all of it is
    has_parts  whether the node's weights are parts, as its result is
    owned    where the result has the rows of a table that is cut
    """

    members: Sequence[int]
    axis: int | None
    needs: Sequence[int | None]
    has_parts: bool = False
    owned: Owned | None = None


Held = Mapping[Weight, Sequence[HeldWeight]]
"""What each member has of every placed weight."""


class Splitting(Protocol):
    """How a model is split over members: where its weights, its storage and its nodes are."""

    @property
    def description(self) -> str:
        """All that decides how storage is cut, for content that is kept beyond this process."""

    def place(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[Sequence[tuple[Weight, TensorInfo]]]:
        """Decide what each member gets of the weights -> its own weights with their tensors, for each."""

    @property
    def held(self) -> Held:
        """What members have of the weights that were placed."""

    @property
    def units(self) -> Units:
        """How much each member has of what is cut."""

    def heads(self, role: KVRole, heads: int, layer: int | None) -> Sequence[int]:
        """The heads that each member stores of a layer; 0 for none."""

    def place_nodes(self, graph: Graph, free: FreeNodes) -> Mapping[Tensor, Placed]:
        """Place every node that is not free. Raises UnsupportedError for what cannot be split this way."""


class FreeNodes:
    """The nodes of a graph that depend on its inputs alone and cost little."""

    def __init__(self) -> None:
        self._known: dict[Tensor, bool] = {}

    def has(self, node: Operand) -> bool:
        """Return whether every member computes it for itself."""
        if not isinstance(node, Tensor):
            return False
        if node not in self._known:
            cheap = node.op in _CHEAP and all(self.has(operand) for operand in node.operands)
            self._known[node] = cheap
        return self._known[node]


def joined(parts: Sequence[npt.NDArray[Any]], groups: int) -> npt.NDArray[Any]:
    """Put the parts of members side by side, (rows, own width) each -> (rows, width).

    With `groups`, each of that many groups of columns consists of a group of every part.
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
