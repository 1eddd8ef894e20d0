"""Single experts on a GPU, while the processor computes the other experts of the same layers.

The processor has all experts of such a layer, in memory or in the file, and a GPU has some of them in slots.
A batch computes an expert on the GPU if it is in a slot, and otherwise on the processor. Both compute at the
same time, and only rows travel. The rows of both are joined before a token's experts are added up, in an
order that does not depend on their places, so no bit does.

The score of an expert is the number of tokens that chose it, where a token counts half as much after
`_HALF_LIFE` later ones. That is the rule of native/include/expert_store.h. Between two batches an expert
with a higher score takes the slot of one with a lower score, if what it saves the processor pays for the
copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import LayerExperts
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.moe_ops import ExpertPlaces, group_by_expert, join_experts

__all__ = ["ExpertMove", "ExpertTiers", "HasExpertSlots", "SplitExperts", "TieredLayer"]

I32 = npt.NDArray[np.int32]

_HALF_LIFE = 256
"""Tokens after which a choice counts half."""

_INTERVAL = 16
"""Tokens after which slots are looked through again."""

_AT_ONCE = 16
"""The most experts that move between two batches, since the batch waits for them."""

_WORTH = 24.0
"""How often the processor computes an expert, in the time that a copy to the GPU takes.

A core lays out about one gigabyte per second, and the processor reads thirty (not measured with a GPU).
"""


@runtime_checkable
class HasExpertSlots(Protocol):
    """A backend whose stacks of experts can exchange single matrices after they are loaded."""

    def put_experts(self, contents: Sequence[tuple[Weight, int, TensorInfo]]) -> None:
        """Replace matrices in stacks: each weight, the number of the matrix, and the tensor to read, (1, …).

        No launch may be computed meanwhile. Raises ModelError, with nothing replaced, if a file cannot be
        read.
        """


class TieredLayer(Struct, eq=False):
    """A layer with experts in two places.

    number    of the layer
    host, gpu  the member that has all experts, and the one with slots
    experts   number of experts, and `slots` for some of them
    tensors   the tensor of each weight of experts, and the number of its slots' weight on the GPU
    owners    (slots,) the expert in each slot, or -1
    """

    number: int
    host: int
    gpu: int
    experts: int
    slots: int
    tensors: list[tuple[int, TensorInfo]]
    owners: I32

    @property
    def stacks(self) -> int:
        """The number of matrices of an expert."""
        return sum(len(info.shape) == 3 for _, info in self.tensors)

    def places(self, member: int) -> I32:
        """Return the number of each expert's matrix on a member; see `ExpertPlaces`."""
        slots = np.flatnonzero(self.owners >= 0).astype(np.int32)
        if member == self.host:
            found = np.arange(self.experts, dtype=np.int32)
            found[self.owners[slots]] = self.experts
        else:
            found = np.full(self.experts, self.slots, np.int32)
            found[self.owners[slots]] = slots
        return found

    def matrices(self, member: int) -> int:
        """Return the number of matrices in a member's stacks."""
        return self.experts if member == self.host else self.slots

    def input_name(self, member: int) -> str:
        """Return the name of the graph's input with `places`."""
        return f"experts of layer {self.number} on {member}"


class ExpertMove(Struct, frozen=True):
    """An expert that moves into a slot of a layer."""

    layer: TieredLayer
    slot: int
    expert: int

    def tensors(self) -> Iterator[tuple[int, TensorInfo]]:
        """Yield each weight of slots with the tensor of the expert."""
        for weight, info in self.layer.tensors:
            yield weight, info.part(info.name, 0, slice(self.expert, self.expert + 1))


class SplitExperts(Struct, frozen=True):
    """A graph in which both members of tiered layers compute experts.

    groups  the member of each order of rows
    late    the nodes that the GPUs compute while the processor computes other experts
    routes  by the name of an output with the choices of tokens: its layer
    """

    graph: Graph
    groups: Mapping[Tensor, int]
    late: frozenset[Tensor]
    routes: Mapping[str, TieredLayer]


class ExpertTiers:
    """The layers with experts in two places, what tokens choose there, and where experts are."""

    def __init__(self) -> None:
        self.layers: list[TieredLayer] = []
        self._by_weight: dict[Weight, TieredLayer] = {}
        self._scores: dict[TieredLayer, npt.NDArray[np.float64]] = {}
        self._requests: dict[TieredLayer, list[int]] = {}
        self._inputs: dict[str, I32] = {}
        self._since_last = 0

    def add(self, layer: TieredLayer, weights: Sequence[Weight]) -> None:
        """Add a layer, whose first experts are in the slots, with its weights of experts."""
        self.layers.append(layer)
        self._by_weight |= dict.fromkeys(weights, layer)
        self._scores[layer] = np.zeros(layer.experts)
        self._requests[layer] = [0, 0]
        self._renew(layer)

    def _renew(self, layer: TieredLayer) -> None:
        for member in (layer.host, layer.gpu):
            self._inputs[layer.input_name(member)] = layer.places(member)

    @property
    def inputs(self) -> Mapping[str, I32]:
        """The values of the inputs for a launch now, by name. The arrays do not change."""
        return self._inputs

    def note(self, routes: Mapping[TieredLayer, npt.NDArray[np.float32]], places: Mapping[str, I32]) -> None:
        """Count the choices of a batch: routes (n, 2, count) by layer, with the `inputs` of its launch."""
        tokens = max((len(each) for each in routes.values()), default=0)
        if tokens == 0:
            return
        self._since_last += tokens
        for layer, rows in routes.items():
            chosen = np.bincount(_experts_of(rows, layer.experts), minlength=layer.experts)
            self._scores[layer] *= 0.5 ** (tokens / _HALF_LIFE)
            self._scores[layer] += chosen
            on_gpu = places[layer.input_name(layer.gpu)] < layer.slots
            counts = self._requests[layer]
            counts[0] += int(np.count_nonzero(chosen))
            counts[1] += int(np.count_nonzero(chosen[on_gpu]))

    def due(self) -> Sequence[ExpertMove]:
        """Return the moves to make before the next batch, those that save the most first."""
        if self._since_last < _INTERVAL:
            return ()
        self._since_last = 0
        found: list[tuple[float, ExpertMove]] = []
        for layer in self.layers:
            scores = self._scores[layer]
            elsewhere = np.setdiff1d(np.arange(layer.experts), layer.owners)
            wanted = elsewhere[np.argsort(-scores[elsewhere], kind="stable")]
            held = np.where(layer.owners >= 0, scores[layer.owners], 0.0)
            slots = np.argsort(held, kind="stable")
            for slot, expert in zip(slots.tolist(), wanted.tolist(), strict=False):
                gain = float(scores[expert] - held[slot])
                if gain <= _WORTH:
                    break
                found.append((gain, ExpertMove(layer, slot, expert)))
        found.sort(key=lambda each: -each[0])
        return [move for _, move in found[:_AT_ONCE]]

    @contextmanager
    def moving(self, moves: Sequence[ExpertMove]) -> Iterator[None]:
        """Let experts move within the block, after which they are in their slots.

        After a ModelError the slots have what they had. After any other error they count as empty, because
        nobody knows what they have.
        """
        before = [int(move.layer.owners[move.slot]) for move in moves]
        self._own(moves, [-1] * len(moves))
        try:
            yield
        except ModelError:
            self._own(moves, before)
            raise
        self._own(moves, [move.expert for move in moves])

    def _own(self, moves: Sequence[ExpertMove], owners: Sequence[int]) -> None:
        for move, owner in zip(moves, owners, strict=True):
            move.layer.owners[move.slot] = owner
        for layer in dict.fromkeys(move.layer for move in moves):
            self._renew(layer)

    def counts(self, of_host: Sequence[LayerExperts]) -> tuple[LayerExperts, ...]:
        """Return the counts of all layers: those of a store on the processor, and those of both tiers."""
        found = {each.layer: each for each in of_host}
        for layer in self.layers:
            requests, hits = (count * layer.stacks for count in self._requests[layer])
            own = LayerExperts(
                layer.number, hits, 0, 0, 0, 0, gpu_hits=hits, gpu_slots=layer.slots * layer.stacks
            )
            there = layer.experts * layer.stacks
            misses = requests - hits
            in_memory = LayerExperts(layer.number, misses, misses, 0, there, there)
            found[layer.number] = found.get(layer.number, in_memory) + own
        return tuple(found[number] for number in sorted(found))

    def split(self, graph: Graph) -> SplitExperts:
        """Return a graph with the experts of tiered layers on both members."""
        layers = self._layers_of(graph)
        if not layers:
            return SplitExperts(graph, {}, frozenset(), {})
        copy = Graph(graph.dtype, product_types=graph.product_types)
        known: dict[Tensor, Tensor] = {}
        both: dict[Tensor, tuple[Tensor, Tensor]] = {}  # on the processor and on a GPU
        groups: dict[Tensor, int] = {}
        routes: dict[str, TieredLayer] = {}
        for node in graph.nodes:
            if node in layers:
                chosen = known[_tensor(node, 0)]
                both[node] = _groups(copy, chosen, layers[node], node.attributes["repeats"])
                groups |= zip(both[node], (layers[node].host, layers[node].gpu), strict=True)
                name = f"routes {len(routes)}"
                routes[name] = layers[node]
                copy.output(name, chosen)
            elif node.op == "combine" and node.operands[1] in both:
                x, order = both[_tensor(node, 0)], both[_tensor(node, 1)]
                joined = join_experts(x[0], order[0], x[1], order[1])
                operands = (joined, order[0], *(known[x] for x in node.operands[2:] if isinstance(x, Tensor)))
                known[node] = copy.record(node.op, operands, node.shape, node.dtype, **node.attributes)
            elif any(x in both for x in node.operands):
                both[node] = _recorded(copy, node, known, both, 0), _recorded(copy, node, known, both, 1)
            elif node.op == "input":
                known[node] = copy.input(node.attributes["name"], node.shape, node.dtype)
            else:
                known[node] = _recorded(copy, node, known, {}, 0)
        for name, node in graph.outputs.items():
            copy.output(name, known[node])
        late = frozenset(on_gpu for _, on_gpu in both.values()) - groups.keys()
        return SplitExperts(copy, groups, late, routes)

    def _layers_of(self, graph: Graph) -> Mapping[Tensor, TieredLayer]:
        """Return the orders of rows that only products with tiered experts use, with their layers."""
        found: dict[Tensor, set[TieredLayer | None]] = {}
        for node in graph.nodes:
            if node.op == "expert_linear":
                weight = node.operands[2]
                assert isinstance(weight, Weight)
                found.setdefault(_tensor(node, 1), set()).add(self._by_weight.get(weight))
        return {node: layer for node, (layer, *others) in found.items() if layer is not None and not others}


def _groups(graph: Graph, routes: Tensor, layer: TieredLayer, repeats: bool) -> tuple[Tensor, Tensor]:
    """Record the orders of rows on the processor and on the GPU."""

    def on(member: int) -> Tensor:
        name, shape = layer.input_name(member), (Dim(f"experts of layer {layer.number}", layer.experts),)
        numbers = graph.inputs.get(name) or graph.input(name, shape, DType.I32)
        return group_by_expert(routes, layer.experts, repeats, ExpertPlaces(numbers, layer.matrices(member)))

    return on(layer.host), on(layer.gpu)


def _recorded(
    graph: Graph,
    node: Tensor,
    known: Mapping[Tensor, Tensor],
    both: Mapping[Tensor, tuple[Tensor, Tensor]],
    index: int,
) -> Tensor:
    """Record a node of another graph; of operands in two places, it reads the ones in its own."""
    operands: Any = tuple(
        (both[x][index] if x in both else known[x]) if isinstance(x, Tensor) else x for x in node.operands
    )
    return graph.record(node.op, operands, node.shape, node.dtype, **node.attributes)


def _experts_of(routes: npt.NDArray[np.float32], experts: int) -> npt.NDArray[np.int64]:
    """Return the chosen experts of routes (n, 2, count); of a NaN it is 0, as in kernels."""
    by_token = routes.reshape(len(routes), math.prod(routes.shape[1:]))
    chosen = by_token[:, : by_token.shape[1] // 2].ravel()
    return np.where((chosen >= 0) & (chosen < experts), chosen, 0).astype(np.int64)


def _tensor(node: Tensor, index: int) -> Tensor:
    operand = node.operands[index]
    assert isinstance(operand, Tensor)
    return operand
