"""LoRA adapters of a model that several members compute. Each member holds the changes to its matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import ClusterError
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import ByDevice, LoraMatrices
from chaski.ml.graph import AdapterTable, Graph, Tensor
from chaski.ml.sharded import encoding
from chaski.ml.sharded.head import Members
from chaski.ml.sharded.placement import Cut, HeldTable, Placed, Units, cuts

__all__ = ["ShardedSlots", "note_adapted"]

Bytes = npt.NDArray[np.uint8]


class ShardedSlots(HeldTable):
    """`AdapterSlots` of several members. Only the head has the files, so it sends the matrices to members."""

    def __init__(self, members: Members, backend: int, number: int) -> None:
        """`number`: the number of the table on every member."""
        super().__init__(number)
        self._members = members
        self._fields = {"backend": backend, "table": number}
        self._places: dict[int, Mapping[int, Cut | None]] = {}

    def note(self, matrix: int, places: Mapping[int, Cut | None]) -> None:
        """Record which members multiply by a matrix, and by which of its rows (None for all)."""
        self._places[matrix] = places

    @property
    def ready_bytes(self) -> ByDevice:
        return self._asked("adapters_ready", [self._fields] * len(self._members))

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        told = [self._described(list(self._parts(pairs, member))) for member in range(len(self._members))]
        return self._asked("adapter_bytes", told)

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        fields, arrays = [], []
        for member in range(len(self._members)):
            parts = list(self._parts(pairs, member))
            fields.append({**self._described(parts), "slot": slot})
            arrays.append([_content(info) for _, a, b, _ in parts for info in (a, b)])
        self._members.ask_all("put_adapter", fields, arrays)

    def clear(self, slot: int) -> None:
        """Begin to empty a slot. The last user of an adapter calls this, and must not wait for a member."""
        fields = {**self._fields, "slot": slot}
        with suppress(ClusterError):  # a member that is lost or closed has released its memory already
            members = [self._members[member] for member in range(len(self._members))]
            self._members.send_together([member.request("clear_adapter", fields) for member in members])

    def _parts(
        self, pairs: Mapping[int, LoraMatrices], member: int
    ) -> Iterator[tuple[int, TensorInfo, TensorInfo, float]]:
        """Yield a member's part of the pairs: all of A, and the rows of B for its rows of the matrix."""
        for matrix, (a, b, scale) in pairs.items():
            places = self._places.get(matrix, {})
            if member in places:
                rows = places[member]
                own = b if rows is None else b.part(b.name, 0, slice(*rows))
                yield matrix, a, own, scale

    def _described(self, parts: Sequence[tuple[int, TensorInfo, TensorInfo, float]]) -> Mapping[str, Any]:
        described = [
            [matrix, encoding.encode_content(a), encoding.encode_content(b), scale]
            for matrix, a, b, scale in parts
        ]
        return {**self._fields, "pairs": described}

    def _asked(self, kind: str, fields: Sequence[Mapping[str, Any]]) -> ByDevice:
        found: dict[str, int] = {}
        for member, (reply, _) in enumerate(self._members.ask_all(kind, fields)):
            node = self._members[member].node
            for device, num_bytes in reply["bytes"].items():
                name = node.device_name(device)
                found[name] = found.get(name, 0) + num_bytes
        return found


def note_adapted(graph: Graph, placed: Mapping[Tensor, Placed], units: Units) -> None:
    """Record in a graph's adapter tables the members that hold each changed matrix."""
    for node in graph.nodes:
        if node.op != "adapt":
            continue
        *_, table = node.operands
        assert isinstance(table, AdapterTable)
        assert isinstance(table.handle, ShardedSlots), "a table of another backend"
        place, size = placed[node], node.shape[-1]
        assert isinstance(size, int)
        parts = cuts(size, units)
        places = {member: None if place.axis is None else parts[member] for member in place.members}
        table.handle.note(node.attributes["matrix"], places)


def _content(info: TensorInfo) -> Bytes:
    return np.ascontiguousarray(info.data).view(np.uint8).reshape(-1)
