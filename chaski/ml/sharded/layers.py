"""Splitting by layers: each member has consecutive layers and their storage; values between them are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import TensorInfo
from chaski.ml.cached_ops import CONTENTS
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import Graph, KVBuffer, KVRole, Tensor, Weight
from chaski.ml.sharded.expert_tiers import ExpertTiers, SplitExperts, TieredLayer
from chaski.ml.sharded.placement import Held, HeldBuffer, HeldWeight, Placed, Units

__all__ = ["LayerSplit"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"blk\.(\d+)\.\w+_exps\.")
_OF_EXPERTS = ("dispatch", "scale_by_expert", "join_experts", "combine")
"""Operations that are computed where the experts are, whose rows they sort and add up."""
_TABLE, _OUTPUT = "token_embd.weight", "output.weight"


class LayerSplit:
    """A split into consecutive layers, where each member's weights have its share of all bytes.

    Parts outside the layers are on the first member, except the output part, which is on the last. If the
    token table also computes the outputs, both have it; otherwise the first would wait for the last.
    """

    def __init__(
        self,
        shares: Sequence[float],
        behind_first: int | None = None,
        overrides: Sequence[tuple[str, int]] = (),
        expert_slots: int = 0,
    ) -> None:
        """Create a split with a number of trailing layers behind the first member; None for any number.

        The output counts as one layer. A weight whose name contains a match of one of the regular expressions
        in `overrides` is on that member, wherever the rest of its layer is; the first match counts. If these
        place all experts of a layer elsewhere, `expert_slots` of them are with the rest of the layer, too.
        """
        self._shares = shares
        self._overrides = [(re.compile(pattern), member) for pattern, member in overrides]
        self._behind_first = behind_first
        self._last_layers: Sequence[int] = [0] * len(shares)
        self._held: dict[Weight, Sequence[HeldWeight]] = {}
        self._expert_slots = expert_slots
        self._experts: SplitExperts | None = None
        self.tiers = ExpertTiers()

    @property
    def description(self) -> str:
        return "layers to " + ", ".join(map(str, self._last_layers))

    @property
    def held(self) -> Held:
        return self._held

    @property
    def units(self) -> Units:
        return [1] * len(self._shares)

    def place(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[Sequence[tuple[Weight, TensorInfo]]]:
        """Place weights by layer. Raises OptionError if there are fewer layers than members."""
        cut = [each for each in weights if self._overridden(each[0].name) is None]
        self._last_layers = _cut(cut, self._shares, self._behind_first)
        on_each: list[list[tuple[Weight, TensorInfo]]] = [[] for _ in self._shares]
        is_tied = _is_tied(weights)
        for weight, info in weights:
            members = {self.member_of(weight.name)}
            if is_tied and weight.name == _TABLE and self._overridden(_TABLE) is None:
                members.add(len(self._shares) - 1)
            held = [HeldWeight() for _ in self._shares]
            for member in members:
                own = Weight(
                    weight.shape,
                    plain=weight.plain,
                    constant=weight.constant,
                    name=weight.name,
                    handle=len(on_each[member]),
                )
                on_each[member].append((own, info))
                held[member] = HeldWeight(own)
            self._held[weight] = held
        self._place_in_slots(weights, on_each)
        return on_each

    def _place_in_slots(
        self,
        weights: Sequence[tuple[Weight, TensorInfo]],
        on_each: Sequence[list[tuple[Weight, TensorInfo]]],
    ) -> None:
        """Give layers whose experts are elsewhere slots for some of them."""
        by_layer: dict[int, list[tuple[Weight, TensorInfo]]] = {}
        for weight, info in weights:
            if (found := _EXPERTS.match(weight.name)) is not None:
                by_layer.setdefault(int(found[1]), []).append((weight, info))
        for layer, stacks in by_layer.items():
            members = {self.member_of(weight.name) for weight, _ in stacks}
            host, gpu = members.pop(), self.member_of_layer(layer)
            experts = stacks[0][1].shape[0]
            slots = min(self._expert_slots, experts - 1)
            is_odd = members or host == gpu or any(info.shape[0] != experts for _, info in stacks)
            if is_odd or slots < 1:
                continue
            tensors = []
            for weight, info in stacks:
                shape = (slots, *weight.shape[1:])
                own = Weight(shape, plain=weight.plain, name=weight.name, handle=len(on_each[gpu]))
                tensors.append((len(on_each[gpu]), info))
                on_each[gpu].append((own, info.part(info.name, 0, slice(slots))))
                held = list(self._held[weight])
                held[gpu] = HeldWeight(part=own)
                self._held[weight] = held
            owners = np.arange(slots, dtype=np.int32)
            tiered = TieredLayer(layer, host, gpu, experts, slots, tensors, owners)
            self.tiers.add(tiered, [weight for weight, _ in stacks])

    def prepared(self, graph: Graph) -> Graph:
        self._experts = self.tiers.split(graph)
        return self._experts.graph

    @property
    def routes(self) -> Mapping[str, TieredLayer]:
        return {} if self._experts is None else self._experts.routes

    def heads(self, role: KVRole, heads: int, layer: int | None) -> Sequence[int]:
        member = 0 if layer is None else self.member_of_layer(layer)
        return [heads if index == member else 0 for index in range(len(self._shares))]

    def place_nodes(self, graph: Graph, free: FreeNodes) -> Mapping[Tensor, Placed]:
        """Place a node with its weights and storage, and a node without them with the last of its operands.

        Values that other members need anyway are sent instead of values that are computed from them.
        """
        places: dict[Tensor, int] = {}
        movable: list[Tensor] = []
        with_experts = self._with_experts(graph)
        late = frozenset() if self._experts is None else self._experts.late
        for node in graph.nodes:
            if free.has(node):
                continue
            if node in with_experts:
                places[node] = with_experts[node]
                continue
            fixed = {self._member_with(x, node) for x in node.operands if isinstance(x, Weight | KVBuffer)}
            tensors = [x for x in node.operands if isinstance(x, Tensor) and x in places]
            fixed |= {places[x] for x in tensors if x.op in CONTENTS}
            if node.op == "adapt":  # on the member with the changed matrix
                fixed.add(places[tensors[0]])
            if len(fixed) > 1:
                raise UnsupportedError(
                    f"{node.op} needs weights or storage of several nodes: split the model by rows instead"
                )
            if not fixed and node.op != "group_by_expert":
                movable.append(node)
            places[node] = fixed.pop() if fixed else max((places[x] for x in tensors), default=0)
        _move(graph, places, movable)
        return {
            node: Placed([place], None, [None] * len(node.operands), node in late, is_late=node in late)
            for node, place in places.items()
        }

    def _with_experts(self, graph: Graph) -> Mapping[Tensor, int]:
        """Return the members of the operations around products with experts, which have no weights."""
        members = {} if self._experts is None else dict(self._experts.groups)
        for node in graph.nodes:
            if node.op == "expert_linear":
                groups, weight = node.operands[1:3]
                assert isinstance(groups, Tensor)
                assert isinstance(weight, Weight)
                if self._experts is None or groups not in self._experts.groups:
                    members[groups] = self._member_with(weight, node)
                else:
                    members[node] = members[groups]
        for node in graph.nodes:
            if (
                node.op in _OF_EXPERTS
                and isinstance(groups := node.operands[1], Tensor)
                and groups in members
            ):
                members[node] = members[groups]
        return members

    def _overridden(self, name: str) -> int | None:
        """Return the member that a weight is on wherever its layer is; None for most weights."""
        return next((member for pattern, member in self._overrides if pattern.search(name)), None)

    def _member_with(self, operand: Weight | KVBuffer, node: Tensor) -> int:
        """Return the member with an operand; for outputs from a table that two members have, the last one."""
        if isinstance(operand, Weight):
            members = [index for index, held in enumerate(self._held[operand]) if held.whole is not None]
            return members[0] if node.op == "embedding" else members[-1]
        assert isinstance(operand.handle, HeldBuffer), "a buffer of another backend"
        return next(index for index, own in enumerate(operand.handle.buffers) if own is not None)

    def member_of(self, name: str) -> int:
        """Return the member of a weight that is placed; of a table that computes outputs too, the first."""
        if (member := self._overridden(name)) is not None:
            return member
        layer = _LAYER.match(name)
        if layer is not None:
            return self.member_of_layer(int(layer[1]))
        return len(self._shares) - 1 if name.startswith("output") else 0

    def member_of_layer(self, layer: int) -> int:
        """Return the member with a layer's keys and values."""
        ends = self._last_layers
        return next((index for index, end in enumerate(ends) if layer <= end), len(ends) - 1)


def _is_tied(weights: Sequence[tuple[Weight, TensorInfo]]) -> bool:
    """Return whether the token table also computes the outputs."""
    return all(weight.name != _OUTPUT for weight, _ in weights)


def _move(graph: Graph, places: dict[Tensor, int], movable: Sequence[Tensor]) -> None:
    """Move a node to the only member that reads it, if other nodes there read all its operands."""
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


def _cut(
    weights: Sequence[tuple[Weight, TensorInfo]], shares: Sequence[float], behind_first: int | None
) -> Sequence[int]:
    """Return the last layer of each member; a member without layers repeats the previous number."""
    layers: dict[int, int] = {}
    before = after = 0
    for weight, info in weights:
        layer = _LAYER.match(weight.name)
        if layer is not None:
            layers[int(layer[1])] = layers.get(int(layer[1]), 0) + info.nbytes
        elif weight.name.startswith("output"):
            after += info.nbytes
        else:
            before += info.nbytes
            if weight.name == _TABLE and _is_tied(weights):
                after += info.nbytes
    numbers = sorted(layers)
    if behind_first is None:
        ends = _ends([layers[number] for number in numbers], shares, before, after)
        return [numbers[end - 1] for end in ends]
    on_first = max(0, len(numbers) + 1 - behind_first)
    sizes = [layers[number] for number in numbers[on_first:]]
    without = max(0, len(shares) - 1 - len(sizes))
    ends = [on_first] * (1 + without)
    ends += [on_first + end for end in _ends(sizes, shares[1 + without :], 0, after)]
    return [numbers[end - 1] if end else -1 for end in ends]


def _ends(sizes: Sequence[int], shares: Sequence[float], before: int, after: int) -> Sequence[int]:
    """Return the cumulative number of layers per member, chosen so that bytes are nearest to the shares.

    `before` and `after` are the bytes on the first and the last member in addition to their layers.
    """
    if len(sizes) < len(shares):
        raise OptionError(f"{len(sizes)} layers cannot be split over {len(shares)} nodes: name fewer nodes")
    so_far = list(accumulate(sizes, initial=before))
    total = so_far[-1] + after
    ends: list[int] = []
    for index, share in enumerate(accumulate(shares)):
        low, high = (ends[-1] if ends else 0) + 1, len(sizes) - (len(shares) - index - 1)
        wanted = total * share / sum(shares)
        ends.append(min(range(low, high + 1), key=lambda end: abs(so_far[end] - wanted)))
    return [*ends[:-1], len(sizes)] if ends else []
