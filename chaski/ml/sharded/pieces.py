"""A graph cut into pieces: each member's work, and the values that are sent between pieces.

Each node has a level. Values that a node reads from other members are computed on a lower level, so all
values between two levels are sent at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from chaski.errors import UnsupportedError
from chaski.ml.cached_ops import CONTENTS, stored
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import AdapterTable, Dim, Graph, KVBuffer, Operand, Shape, Tensor, Weight, width
from chaski.ml.sharded.placement import Cut, Held, HeldBuffer, HeldTable, Placed, Units, cuts

__all__ = ["Gather", "OwnedRows", "Piece", "Result", "Send", "TopOfParts", "cut_graph"]


class OwnedRows(Struct, frozen=True):
    """The cut of a table by rows: the name of the input with the ids, and each source's range of rows."""

    ids: str
    cuts: Sequence[Cut]


class Gather(Struct, frozen=True):
    """A value that is joined from parts of `sources`. Each names its part `part` and sends it as `number`.

    `leading` names the dimension of its rows, which have `width` elements. Without rows, nothing is sent.
    `groups`: the number of groups in a row; the parts are side by side within each group.
    """

    value: str
    part: str
    number: int
    leading: str
    width: int
    sources: Sequence[int]
    groups: int = 1
    owned: OwnedRows | None = None


class Send(Struct, frozen=True):
    """A value that other members wait for: all its rows, or some if they are rows of a table that is cut.

    `leading` names the dimension of its rows. Without rows, nothing is sent.
    `block`: the size of the blocks in which all readers round the value to int8, so that it can be sent as
    int8; 0 if a reader needs floats, or if a block has elements of several members.
    """

    value: str
    number: int
    leading: str
    targets: Sequence[int]
    owned: OwnedRows | None = None
    block: int = 0


class Piece(Struct):
    """The work of a member on one level: gather, compute, send.

    The inputs of its graph are inputs of the whole graph, or values, of the same name; its outputs are
    values. `ids` lists inputs whose ids are converted to places in the member's part of a table.
    """

    gathers: list[Gather] = field(default_factory=list)
    graph: Graph = field(default_factory=Graph)
    values: list[str] = field(default_factory=list)
    ids: dict[str, tuple[str, Cut]] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)


class TopOfParts(Struct, frozen=True):
    """A `top_k` by parts: the cuts of the rows, and the name of the input with the counts."""

    cuts: Sequence[Cut]
    counts: str


class Result(Struct, frozen=True):
    """An output of the graph: its value, and the members that have it or have parts of each group of a row.

    `leading` names the dimension of its rows. `top`: the members have the largest elements of their parts.
    """

    value: str
    members: Sequence[int]
    groups: int
    leading: str
    top: TopOfParts | None = None


def cut_graph(
    graph: Graph,
    placed: Mapping[Tensor, Placed],
    held: Held,
    free: FreeNodes,
    units: Units,
    blocks: Mapping[Tensor, int],
) -> tuple[Sequence[Sequence[Piece]], Mapping[str, Result]]:
    """Return the pieces of each member, and the places of the outputs. Every input is free.

    `units`: the members' shares of everything that is cut. `blocks`: values that are read only as int8, with
    the size of the blocks in which they are rounded.
    """
    return _Cutting(graph, placed, held, free, units, blocks).cut()


class _Cutting:
    def __init__(
        self,
        graph: Graph,
        placed: Mapping[Tensor, Placed],
        held: Held,
        free: FreeNodes,
        units: Units,
        blocks: Mapping[Tensor, int],
    ) -> None:
        self._graph = graph
        self._placed = placed
        self._held = held
        self._free = free
        self._units, self._members = units, len(units)
        self._blocks = blocks
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._levels = self._find_levels()
        self._wanted: set[tuple[Tensor, int]] = set()
        # The values that each member needs from others, or from itself and others, with the first level.
        self._gathered: dict[tuple[Tensor, int], int] = {}

    def cut(self) -> tuple[Sequence[Sequence[Piece]], Mapping[str, Result]]:
        results = {name: self._result(node) for name, node in self._graph.outputs.items()}
        self._find_wanted(results)
        last = max(self._levels.values(), default=-1)
        pieces = [
            [_PieceBuilder(self, member, level) for level in range(last + 1)]
            for member in range(self._members)
        ]
        for (node, member), level in self._gathered.items():
            self._connect(pieces, node, member, level)
        for node in self._graph.nodes:
            for member in range(self._members):
                if (node, member) in self._wanted:
                    pieces[member][self._levels[node]].add(node)
        # A member must keep outputs of its earlier pieces that its later pieces read.
        for name, result in results.items():
            for member in result.members:
                node = self._graph.outputs[name]
                pieces[member][self._levels[node]].keep(node)
        for some in pieces:
            for piece in some:
                for node in piece.read_from_earlier:
                    some[self._levels[node]].keep(node)
        found = [[piece.finished() for piece in some] for some in pieces]
        return [[piece for piece in some if not _is_empty(piece)] for some in found], results

    def reads(self, node: Tensor) -> Iterator[tuple[Tensor, int | None]]:
        """Yield the values that a node reads, each with the axis along which a part is enough, or None."""
        for operand, axis in zip(node.operands, self._placed[node].needs, strict=True):
            yield from self._sources(operand, axis)

    def _sources(self, operand: Operand, axis: int | None) -> Iterator[tuple[Tensor, int | None]]:
        """Yield an operand, or the operands of a value that every member computes itself."""
        if isinstance(operand, Tensor) and not self._free.has(operand):
            if operand.op == "group_by_expert":
                yield from self._sources(operand.operands[0], None)
            elif operand.op not in CONTENTS:
                yield operand, axis

    def is_gathered(self, node: Tensor, axis: int | None, member: int) -> bool:
        """Return whether a member cannot read a value from its own memory."""
        place = self._placed[node]
        if place.owned is not None or member not in place.members:
            return True
        return place.axis is not None and place.axis != axis

    def _find_levels(self) -> dict[Tensor, int]:
        levels: dict[Tensor, int] = {}
        touched: dict[KVBuffer, int] = {}
        for node in self._graph.nodes:
            if self._free.has(node) or node.op in ("group_by_expert", "stored"):
                continue
            buffers = [x for x in node.operands if isinstance(x, KVBuffer)]
            contents = [x for x in node.operands if isinstance(x, Tensor) and x.op in CONTENTS]
            buffers += [x for each in contents for x in each.operands if isinstance(x, KVBuffer)]
            level = max((touched.get(buffer, 0) for buffer in buffers), default=0)
            place = self._placed[node]
            for source, axis in self.reads(node):
                travels = any(self.is_gathered(source, axis, m) for m in place.members)
                waits = place.is_late and not self._placed[source].is_late
                level = max(level, levels[source] + (travels or waits))
            levels[node] = level
            touched |= dict.fromkeys(buffers, level)
        return levels

    def _result(self, node: Tensor) -> Result:
        place = self._placed.get(node)
        leading = node.shape[0]
        if place is None or place.owned is not None or isinstance(leading, int):
            raise UnsupportedError("an input, or a row of a table, cannot be an output of a split model")
        top = None
        if node.op == "top_k" and place.needs[0] is not None:
            rows, counts = node.operands
            assert isinstance(rows, Tensor)
            assert isinstance(counts, Tensor)
            top = TopOfParts(cuts(_size(rows.shape, 1), self._units), counts.attributes["name"])
        is_everywhere = place.axis is not None or top is not None
        members = place.members if is_everywhere else place.members[:1]
        return Result(self.value(node), members, _groups(node.shape, place.axis), leading.name, top)

    def _find_wanted(self, results: Mapping[str, Result]) -> None:
        """Find the nodes that outputs or storage need, from the last to the first."""
        for name, result in results.items():
            self._wanted |= {(self._graph.outputs[name], member) for member in result.members}
        for node in reversed(self._graph.nodes):
            if node not in self._levels:
                continue
            for member in self._placed[node].members:
                if any(isinstance(x, KVBuffer) for x in node.operands):
                    self._wanted.add((node, member))
                if (node, member) in self._wanted:
                    self._want_sources(node, member)

    def _want_sources(self, node: Tensor, member: int) -> None:
        for source, axis in self.reads(node):
            if not self.is_gathered(source, axis, member):
                self._wanted.add((source, member))
                continue
            level = min(self._gathered.get((source, member), self._levels[node]), self._levels[node])
            self._gathered[source, member] = level
            self._wanted |= {(source, other) for other in self.sources_of(source)}

    def sources_of(self, node: Tensor) -> Sequence[int]:
        """Return the members that have the parts of a whole value."""
        place = self._placed[node]
        return place.members if place.axis is not None or place.owned is not None else place.members[:1]

    def _connect(
        self, pieces: Sequence[Sequence[_PieceBuilder]], node: Tensor, member: int, level: int
    ) -> None:
        place, sources = self._placed[node], self.sources_of(node)
        owned = None
        if place.owned is not None:
            owned = OwnedRows(place.owned.ids.attributes["name"], place.owned.cuts)
        groups = _groups(node.shape, place.axis)
        width = math.prod(size for size in node.shape[1:] if isinstance(size, int))
        names = self.gathered_value(node), self.value(node), self._numbers[node]
        gather = Gather(*names, _leading(node), width, sources, groups, owned)
        pieces[member][level].gather(gather)
        for source in sources:
            pieces[source][self._levels[node]].send(node, member, owned)

    def number(self, node: Tensor) -> int:
        """Return the number by which members identify a node's result."""
        return self._numbers[node]

    def block(self, node: Tensor) -> int:
        """Return the size of the int8 blocks in which a result may be sent; 0 if it is sent as floats."""
        block, place = self._blocks.get(node, 0), self._placed[node]
        if not block or place.owned is not None:
            return 0
        behind = 1 if place.axis is None else place.axis
        shapes = [self.local_shape(node, member)[behind:] for member in place.members]
        widths = [math.prod(size for size in shape if isinstance(size, int)) for shape in shapes]
        return 0 if any(width % block for width in widths) else block

    def value(self, node: Tensor) -> str:
        """Return the name of a member's own part of a node's result."""
        return f"value {self._numbers[node]}"

    def gathered_value(self, node: Tensor) -> str:
        """Return the name of a whole result that a member does not compute itself."""
        return f"whole {self._numbers[node]}"

    def level(self, node: Tensor) -> int:
        return self._levels[node]

    def placed(self, node: Tensor) -> Placed:
        return self._placed[node]

    def is_free(self, node: Tensor) -> bool:
        return self._free.has(node)

    def local_shape(self, node: Tensor, member: int) -> Shape:
        """Return the shape of a member's own part of a node's result."""
        place = self._placed.get(node)
        if place is None or place.axis is None:
            return node.shape
        return self.cut_shape(node.shape, place.axis, member)

    def cut_shape(self, shape: Shape, axis: int, member: int) -> Shape:
        begin, end = self.cut_of(shape, axis, member)
        return (*shape[:axis], end - begin, *shape[axis + 1 :])

    def cut_of(self, shape: Shape, axis: int, member: int) -> Cut:
        size = shape[axis]
        assert isinstance(size, int)
        return cuts(size, self._units)[member]

    def held(self, weight: Weight, member: int, as_part: bool) -> Weight:
        """Return a member's form of a weight. Raises UnsupportedError if the member lacks the needed form."""
        held = self._held[weight][member]
        found = held.part if as_part else held.whole
        if found is None:
            what = "cannot be split" if as_part else "is needed whole"
            raise UnsupportedError(f"{weight.name} {what} by rows: split the model by layers instead")
        return found


class _PieceBuilder:
    """A builder of one member's piece on one level, node by node."""

    def __init__(self, cutting: _Cutting, member: int, level: int) -> None:
        self._cutting = cutting
        self._member = member
        self._level = level
        self._local: dict[tuple[Tensor, int | None], Tensor] = {}
        self._piece = Piece(graph=Graph(cutting._graph.dtype))
        self._sends: dict[Tensor, tuple[list[int], OwnedRows | None]] = {}
        self._kept: dict[Tensor, None] = {}
        self.read_from_earlier: dict[Tensor, None] = {}

    def gather(self, gather: Gather) -> None:
        self._piece.gathers.append(gather)

    def send(self, node: Tensor, target: int, owned: OwnedRows | None) -> None:
        """Keep a value and send it to a member, which may be this one."""
        self.keep(node)
        if target != self._member:
            self._sends.setdefault(node, ([], owned))[0].append(target)

    def keep(self, node: Tensor) -> None:
        """Make a node's result an output of the piece."""
        self._kept[node] = None

    def finished(self) -> Piece:
        piece, cutting = self._piece, self._cutting
        for node in self._kept:
            piece.graph.output(cutting.value(node), self._local[node, cutting.placed(node).axis])
        piece.sends = [
            Send(
                cutting.value(node), cutting.number(node), _leading(node), targets, owned, cutting.block(node)
            )
            for node, (targets, owned) in self._sends.items()
        ]
        return piece

    def add(self, node: Tensor) -> None:
        """Record a node in the form that the member computes."""
        place = self._cutting.placed(node)
        given = list(zip(node.operands, place.needs, strict=True))
        operands: list[Operand] = []
        if place.owned is not None:
            operands.append(self._places_in_part(place.owned.ids, place.owned.cuts[self._member]))
            del given[0]
        operands += [self._operand(operand, axis, place) for operand, axis in given]
        attributes = dict(node.attributes)
        if place.axis is not None and "table" in attributes:
            begin, end = self._cutting.cut_of(node.shape, place.axis, self._member)
            attributes["table"] = attributes["table"][begin:end]
        shape = self._cutting.local_shape(node, self._member)
        self._local[node, place.axis] = self._record(node, operands, shape, attributes)

    def _record(
        self, node: Tensor, operands: Sequence[Operand], shape: Shape, attributes: Mapping[str, object]
    ) -> Tensor:
        return self._piece.graph.record(node.op, tuple(operands), shape, node.dtype, **attributes)

    def _operand(self, operand: Operand, axis: int | None, place: Placed) -> Operand:
        if isinstance(operand, Weight):
            return self._cutting.held(operand, self._member, place.has_parts)
        if isinstance(operand, KVBuffer):
            return self._buffer(operand)
        if isinstance(operand, AdapterTable):
            assert isinstance(operand.handle, HeldTable), "a table of another backend"
            return replace(operand, handle=operand.handle.number)
        return self._read(operand, axis)

    def _buffer(self, buffer: KVBuffer) -> KVBuffer:
        assert isinstance(buffer.handle, HeldBuffer)
        own = buffer.handle.buffers[self._member]
        assert own is not None
        return own

    def _read(self, node: Tensor, axis: int | None) -> Tensor:
        """Return a member's form of a value: all of it, or its part along an axis."""
        if (node, axis) not in self._local:
            self._local[node, axis] = self._found(node, axis)
        return self._local[node, axis]

    def _found(self, node: Tensor, axis: int | None) -> Tensor:
        cutting, graph = self._cutting, self._piece.graph
        if axis is not None and (cutting.is_free(node) or cutting.placed(node).axis != axis):
            return self._part(self._read(node, None), axis)
        if node.op == "input":
            return graph.input(node.attributes["name"], node.shape, node.dtype)
        if cutting.is_free(node) or node.op == "group_by_expert":
            operands = [self._read(operand, None) for operand in node.operands if isinstance(operand, Tensor)]
            return self._record(node, operands, node.shape, node.attributes)
        if node.op in CONTENTS:
            buffer = node.operands[-1]
            assert isinstance(buffer, KVBuffer)
            own = self._buffer(buffer)
            return stored(graph, own, width(node) // buffer.heads)
        if cutting.is_gathered(node, axis, self._member):
            return self._value(cutting.gathered_value(node), node, node.shape)
        assert cutting.level(node) < self._level, f"{node.op} is not computed yet"
        self.read_from_earlier[node] = None
        return self._value(cutting.value(node), node, cutting.local_shape(node, self._member))

    def _value(self, name: str, node: Tensor, shape: Shape) -> Tensor:
        self._piece.values.append(name)
        return self._piece.graph.input(name, shape, node.dtype)

    def _part(self, whole: Tensor, axis: int) -> Tensor:
        """Take the member's part of a whole value."""
        graph, shape = self._piece.graph, whole.shape
        begin, end = self._cutting.cut_of(shape, axis, self._member)
        part = self._cutting.cut_shape(shape, axis, self._member)
        inner = math.prod(size for size in shape[axis + 1 :] if isinstance(size, int))
        outer = [size for size in shape[1:axis] if isinstance(size, int)]
        flat = graph.record("reshape", (whole,), (shape[0], *outer, inner * _size(shape, axis)), whole.dtype)
        first, count = begin * inner, (end - begin) * inner
        taken = graph.record(
            "slice", (flat,), (*flat.shape[:-1], count), whole.dtype, first=first, count=count
        )
        return graph.record("reshape", (taken,), part, whole.dtype)

    def _places_in_part(self, ids: Tensor, cut: Cut) -> Tensor:
        """Return an input with the places of ids in the member's part of a table; any place for other ids."""
        name = f"{ids.attributes['name']} in {cut[0]}:{cut[1]}"
        self._piece.ids[name] = ids.attributes["name"], cut
        known = self._piece.graph.inputs.get(name)
        return known or self._piece.graph.input(name, ids.shape, ids.dtype)


def _leading(node: Tensor) -> str:
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    return leading.name


def _size(shape: Shape, axis: int) -> int:
    size = shape[axis]
    assert isinstance(size, int)
    return size


def _groups(shape: Shape, axis: int | None) -> int:
    """Return the number of groups of a row in which parts are side by side."""
    return 1 if axis is None else math.prod(size for size in shape[1:axis] if isinstance(size, int))


def _is_empty(piece: Piece) -> bool:
    return not (piece.gathers or piece.sends or piece.graph.nodes)
