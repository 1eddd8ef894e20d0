"""Splitting by layers: each member has a run of layers with their storage, and what lies between travels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import TensorInfo
from chaski.ml.graph import Graph, KVBuffer, KVRole, Tensor, Weight
from chaski.ml.sharded.placement import FreeNodes, Held, HeldBuffer, HeldWeight, Placed

__all__ = ["LayerSplit"]

_LAYER = re.compile(r"blk\.(\d+)\.")


class LayerSplit:
    """Runs of layers whose weights take shares of the bytes of all weights.

    What is of no layer is on the first member, but what makes the outputs, which is on the last.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares
        self._last_layers: Sequence[int] = [0] * len(shares)
        self._held: dict[Weight, Sequence[HeldWeight]] = {}

    @property
    def description(self) -> str:
        return "layers to " + ", ".join(map(str, self._last_layers))

    @property
    def held(self) -> Held:
        return self._held

    def place(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[Sequence[tuple[Weight, TensorInfo]]]:
        """Raises OptionError where there are fewer layers than members."""
        self._last_layers = _cut(weights, self._shares)
        on_each: list[list[tuple[Weight, TensorInfo]]] = [[] for _ in self._shares]
        for weight, info in weights:
            member = self._member_of(weight.name)
            own = Weight(weight.shape, plain=weight.plain, name=weight.name, handle=len(on_each[member]))
            on_each[member].append((own, info))
            self._held[weight] = [
                HeldWeight(own if index == member else None) for index in range(len(self._shares))
            ]
        return on_each

    def heads(self, role: KVRole, heads: int, layer: int | None) -> Sequence[int]:
        member = 0 if layer is None else self._member_of_layer(layer)
        return [heads if index == member else 0 for index in range(len(self._shares))]

    def place_nodes(self, graph: Graph, free: FreeNodes) -> Mapping[Tensor, Placed]:
        """A node is where its weights and its storage are, others where the last of their operands is.

        What others need there anyway travels instead of what is made of it.
        """
        places: dict[Tensor, int] = {}
        movable: list[Tensor] = []
        for node in graph.nodes:
            if free.has(node):
                continue
            fixed = {self._member_with(x) for x in node.operands if isinstance(x, Weight | KVBuffer)}
            tensors = [x for x in node.operands if isinstance(x, Tensor) and x in places]
            fixed |= {places[x] for x in tensors if x.op in ("store", "stored")}
            if len(fixed) > 1:
                raise UnsupportedError(
                    f"{node.op} needs weights or storage of several nodes: split the model by rows instead"
                )
            if not fixed and node.op != "group_by_expert":
                movable.append(node)
            places[node] = fixed.pop() if fixed else max((places[x] for x in tensors), default=0)
        _move(graph, places, movable)
        return {node: Placed([place], None, [None] * len(node.operands)) for node, place in places.items()}

    def _member_with(self, operand: Weight | KVBuffer) -> int:
        if isinstance(operand, Weight):
            return next(index for index, held in enumerate(self._held[operand]) if held.whole is not None)
        assert isinstance(operand.handle, HeldBuffer), "a buffer of another backend"
        return next(index for index, own in enumerate(operand.handle.buffers) if own is not None)

    def _member_of(self, name: str) -> int:
        layer = _LAYER.match(name)
        if layer is not None:
            return self._member_of_layer(int(layer[1]))
        return len(self._shares) - 1 if name.startswith("output") else 0

    def _member_of_layer(self, layer: int) -> int:
        ends = self._last_layers
        return next((index for index, end in enumerate(ends) if layer <= end), len(ends) - 1)


def _move(graph: Graph, places: dict[Tensor, int], movable: Sequence[Tensor]) -> None:
    """Move nodes to the member that alone reads them, where others there read all of their operands."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if isinstance(operand, Tensor):
                readers.setdefault(operand, []).append(node)
    for node in reversed(movable):
        targets = {places[reader] for reader in readers.get(node, ()) if reader in places}
        if len(targets) != 1 or node in graph.outputs.values():
            continue
        (target,) = targets
        operands = [x for x in node.operands if isinstance(x, Tensor) and x in places]
        if all(
            any(reader is not node and places.get(reader) == target for reader in readers[x])
            for x in operands
        ):
            places[node] = target


def _cut(weights: Sequence[tuple[Weight, TensorInfo]], shares: Sequence[float]) -> Sequence[int]:
    """The last layer of each member: where the bytes so far are nearest to its share and those before."""
    layers: dict[int, int] = {}
    before = 0
    for weight, info in weights:
        layer = _LAYER.match(weight.name)
        if layer is not None:
            layers[int(layer[1])] = layers.get(int(layer[1]), 0) + info.nbytes
        elif not weight.name.startswith("output"):
            before += info.nbytes
    if len(layers) < len(shares):
        raise OptionError(f"{len(layers)} layers cannot be split over {len(shares)} nodes: name fewer nodes")
    numbers = sorted(layers)
    ends = list(accumulate((layers[number] for number in numbers), initial=before))[1:]
    total = sum(info.nbytes for _, info in weights)
    last: list[int] = []
    for index, share in enumerate(accumulate(shares)):
        low, high = len(last) and last[-1] + 1, len(numbers) - (len(shares) - index)
        wanted = total * share / sum(shares)
        last.append(min(range(low, high + 1), key=lambda place: abs(ends[place] - wanted)))
    last[-1] = len(numbers) - 1
    return [numbers[place] for place in last]
