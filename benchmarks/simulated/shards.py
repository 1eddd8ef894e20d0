"""Simulate the time of batches on any number of nodes.

The pieces are those of a cut graph, with all values that they send and await. The caller gives the costs. A
piece takes the longer of reading its matrices at the node's memory speed and multiplying at the speed of its
cores. While a node waits for values, it reads matrices of the next pieces into its caches. A value takes
processor time at both ends, and passes their ports. Many rows are computed and sent in parts. A port sends
and receives at the same time, and values to different nodes share it evenly.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice

from msgspec import Struct, field

from chaski.ml.graph import Dim, Tensor, Weight
from chaski.ml.products import PRODUCTS, matrix_weight
from chaski.ml.rounding import SUPER_BLOCK
from chaski.ml.sharded.chunks import in_chunks, row_parts
from chaski.ml.sharded.pieces import OwnedRows, Piece

__all__ = ["Batch", "Link", "Node", "Simulated", "Work", "rounded_bytes", "simulate", "work_of"]

_FLOAT = 4


class Node(Struct, frozen=True):
    """The costs of one node.

    piece      seconds of a piece in addition to its products
    bandwidth  bytes of matrices that it reads per second
    rate       multiply-adds per second
    batch      seconds of the head per batch before and after the nodes compute
    ahead      maximum bytes of matrices that it reads ahead while it waits
    cached     bytes per second of matrices that were read ahead
    """

    piece: float
    bandwidth: float
    rate: float
    batch: float = 0.0
    ahead: int = 0
    cached: float = math.inf

    def seconds(self, work: Work, ahead: float = 0.0) -> float:
        """Return the seconds of a piece, with this many bytes of its matrices read ahead."""
        reading = (work.num_bytes - ahead) / self.bandwidth + ahead / self.cached
        return self.piece + max(reading, work.products / self.rate)


class Link(Struct, frozen=True):
    """The costs of a value between two nodes.

    latency    seconds from one port to the other
    bandwidth  bytes per second through a port in each direction
    message    processor seconds of both ends together per value
    byte       the same per byte
    """

    latency: float
    bandwidth: float
    message: float = 0.0
    byte: float = 0.0

    def end(self, num_bytes: int) -> float:
        """Return the processor seconds at one end."""
        return (self.message + num_bytes * self.byte) / 2


class Work(Struct, frozen=True):
    """The work of a piece: bytes of matrices that it reads at least once, and multiply-adds."""

    num_bytes: int
    products: int


class Batch(Struct, frozen=True):
    """A batch: the node of each member, the work of each of its pieces, and the size of each dimension.

    A piece that only forwards values has no work.
    """

    nodes: Sequence[Node]
    work: Sequence[Sequence[Work | None]]
    sizes: Mapping[str, int]


class Simulated(Struct, frozen=True):
    """The result: total seconds, the seconds of each node's pieces, and the bytes of all values."""

    seconds: float
    computing: Sequence[float]
    num_bytes: int


def work_of(piece: Piece, weights: Mapping[Weight, int], sizes: Mapping[str, int]) -> Work:
    """Return the work of a piece. `weights` contains the bytes of a member's matrices.

    Rows of tables, keys and values do not count.
    """
    num_bytes = products = 0
    for node in piece.graph.nodes:
        if node.op in PRODUCTS:
            matrix = matrix_weight(node)
            num_bytes += weights[matrix]
            products += _rows(node, sizes) * math.prod(matrix.shape)
    return Work(num_bytes, products)


def rounded_bytes(rows: int, width: int, block: int) -> int:
    """Return the bytes of rows that are all sent as int8, with a mark per row and scales per block."""
    scales = 8 if block == SUPER_BLOCK else 4
    return rows * (1 + width // block * (block + scales))


def simulate(
    pieces: Sequence[Sequence[Piece]], batches: Sequence[Batch], link: Link, head: float = 0.0
) -> Simulated:
    """Simulate batches by the pieces of each member.

    Each member computes a batch as soon as it has finished the previous one. The head is on the first
    member's machine; `head` is its own time for all batches. Rows of a cut table count equally for all
    members.
    """
    return _Run(pieces, batches, link).run(head)


class _Flow(Struct, eq=False):
    """A part of a value that passes two ports."""

    source: int
    target: int
    batch: int
    number: int
    part: int
    left: float


class _Member(Struct):
    """The progress of a member: the next batch, piece and part, and the start of its wait.

    `ahead` is the number of bytes read ahead, and `seconds` is the time of a part of the piece. `arrived`
    contains the received parts: sender, batch, number of the value, and number of the part.
    """

    batch: int = 0
    next: int = 0
    part: int = 0
    seconds: float = 0.0
    waits_since: float | None = None
    ahead: float = 0.0
    arrived: set[tuple[int, int, int, int]] = field(default_factory=set)
    computing: float = 0.0
    ended: float = 0.0


class _Run:
    def __init__(self, pieces: Sequence[Sequence[Piece]], batches: Sequence[Batch], link: Link) -> None:
        self._pieces = pieces
        self._batches = batches
        self._link = link
        self._members = [_Member() for _ in pieces]
        self._sizes_of_values = [
            [dict(_sent_bytes(some, batch.sizes)) for some in pieces] for batch in batches
        ]
        self._events: list[tuple[float, int, int, _Flow | None, bool]] = []
        self._order = count()
        self._dims = [[_dim_of_parts(piece) for piece in some] for some in pieces]
        # `_waiting` contains the parts on each connection in order, and `_flows` the first part of each.
        self._flows: list[_Flow] = []
        self._waiting: dict[tuple[int, int], deque[_Flow]] = {}
        self._clock = 0.0
        self._num_bytes = 0

    def run(self, head: float) -> Simulated:
        """Process events until none is left."""
        latency = self._link.latency
        for member in range(len(self._members)):
            self._at(latency if member else 0.0, member)
        while self._events or self._flows:
            self._step()
        ends = [each.ended + (latency if member else 0.0) for member, each in enumerate(self._members)]
        computing = [each.computing for each in self._members]
        return Simulated(head + max(ends), computing, self._num_bytes)

    def _at(self, time: float, member: int, flow: _Flow | None = None, is_there: bool = False) -> None:
        """Schedule an event: a member is free, its value reaches its port, or a value arrives."""
        heapq.heappush(self._events, (time, next(self._order), member, flow, is_there))

    def _step(self) -> None:
        """Process the next event, which may be the end of a flow."""
        rates = self._rates()
        left = [flow.left / rate for flow, rate in zip(self._flows, rates, strict=True)]
        shortest = min(left, default=math.inf)
        is_through = self._clock + shortest <= (self._events[0][0] if self._events else math.inf)
        passed = shortest if is_through else self._events[0][0] - self._clock
        for flow, rate in zip(self._flows, rates, strict=True):
            flow.left -= passed * rate
        self._clock += passed
        if is_through:
            # Flows that began together end together, whatever the rounding.
            through = [
                f for f, seconds in zip(self._flows, left, strict=True) if seconds <= shortest * (1 + 1e-9)
            ]
            self._flows = [flow for flow in self._flows if flow not in through]
            for flow in through:
                self._at(self._clock + self._link.latency, flow.target, flow, True)
                waiting = self._waiting[flow.source, flow.target]
                waiting.popleft()
                self._flows += islice(waiting, 1)
            return
        _, _, member, found, is_there = heapq.heappop(self._events)
        if found is None:
            self._members[member].waits_since = self._clock
        elif is_there:
            self._members[member].arrived.add((found.source, found.batch, found.number, found.part))
        else:
            waiting = self._waiting.setdefault((found.source, found.target), deque())
            waiting.append(found)
            if len(waiting) == 1:
                self._flows.append(found)
            return
        self._go_on(member)

    def _rates(self) -> Sequence[float]:
        """Return the bytes per second of each flow: an even share of its busier port."""
        outwards, inwards = [0] * len(self._members), [0] * len(self._members)
        for flow in self._flows:
            outwards[flow.source] += 1
            inwards[flow.target] += 1
        return [self._link.bandwidth / max(outwards[f.source], inwards[f.target]) for f in self._flows]

    def _go_on(self, member: int) -> None:
        """Compute the next part of a member's piece, if all its values have arrived."""
        each = self._members[member]
        if each.waits_since is None:
            return
        if each.next == len(self._pieces[member]):
            each.batch, each.next = each.batch + 1, 0
        if each.batch == len(self._batches):
            each.ended = self._clock
            return
        number, batch = each.batch, self._batches[each.batch]
        sent = self._sizes_of_values[number]
        piece, dim = self._pieces[member][each.next], self._dims[member][each.next]
        parts = 1 if dim is None else max(1, len(list(row_parts(batch.sizes[dim]))))
        needed = [
            (source, number, gather.number, part)
            for gather in piece.gathers
            for source in gather.sources
            if source != member
            for part in _parts_of_step(len(sent[source][gather.number]), each.part, parts, is_first=True)
        ]
        if not each.arrived.issuperset(needed):
            return
        if not each.part:
            each.seconds = self._seconds(member, self._clock - each.waits_since) / parts
        each.arrived.difference_update(needed)
        each.waits_since = None
        each.computing += each.seconds
        taken = (self._link.end(sent[source][value][part]) for source, _, value, part in needed)
        time = self._clock + sum(taken) + each.seconds
        for send in piece.sends:
            sizes = sent[member][send.number]
            for part in _parts_of_step(len(sizes), each.part, parts, is_first=False):
                for target in send.targets:
                    time += self._link.end(sizes[part])
                    self._num_bytes += sizes[part]
                    self._at(time, member, _Flow(member, target, number, send.number, part, sizes[part]))
        each.part += 1
        if each.part == parts:
            each.next, each.part = each.next + 1, 0
        self._at(time, member)

    def _seconds(self, member: int, waited: float) -> float:
        """Return the seconds of a member's next piece after a wait of this length."""
        each = self._members[member]
        batch = self._batches[each.batch]
        node, work = batch.nodes[member], batch.work[member]
        if node.ahead and waited:
            left = sum(one.num_bytes for one in work[each.next :] if one is not None)
            each.ahead = min(each.ahead + waited * node.bandwidth, node.ahead, left)
        now = work[each.next]
        if now is None:
            return 0.0
        ahead = min(each.ahead, now.num_bytes)
        each.ahead -= ahead
        return node.seconds(now, ahead)


def _dim_of_parts(piece: Piece) -> str | None:
    """Return the dimension whose rows a piece computes in parts; None if it computes all at once."""
    chunks = in_chunks(piece.graph) if piece.graph.nodes else None
    return None if chunks is None else chunks.dim


def _parts_of_step(of_value: int, step: int, steps: int, is_first: bool) -> Iterable[int]:
    """Return the parts of a value that a step of a piece reads or makes: its own, or all of them."""
    if of_value == steps:
        return (step,)
    return range(of_value) if step == (0 if is_first else steps - 1) else ()


def _sent_bytes(pieces: Sequence[Piece], sizes: Mapping[str, int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Return the bytes of each part of each value that a member sends, by the number of the value."""
    made: dict[str, Tensor] = {}
    for piece in pieces:
        made |= piece.graph.outputs
        for send in piece.sends:
            node = made[send.value]
            rows = _own_share(_rows(node, sizes), send.owned)
            width = math.prod(size for size in node.shape[1:] if isinstance(size, int))
            # Rows of a cut table are sent together.
            parts = [rows] if send.owned else [part.stop - part.start for _, part in row_parts(rows)]
            yield (
                send.number,
                [
                    rounded_bytes(part, width, send.block) if send.block else part * width * _FLOAT
                    for part in parts
                    if part
                ],
            )


def _rows(node: Tensor, sizes: Mapping[str, int]) -> int:
    leading = node.shape[0]
    return sizes[leading.name] if isinstance(leading, Dim) else leading


def _own_share(rows: int, owned: OwnedRows | None) -> int:
    return rows if owned is None else -(-rows // len(owned.cuts))
