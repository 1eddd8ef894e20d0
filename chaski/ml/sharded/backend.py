"""The backend of a model that several nodes compute. It cuts weights, storage and graphs for its members."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.errors import ClusterError, ModelError, OutOfMemoryError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml.backend import ByDevice, CacheConfig, Device, Memory, ProgressCallback
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import AdapterTable, DType, Graph, KVBuffer, KVRole, Weight
from chaski.ml.rounding import Rounding, product_types
from chaski.ml.sharded import encoding
from chaski.ml.sharded.adapter_slots import ShardedSlots, note_adapted
from chaski.ml.sharded.expert_tiers import ExpertTiers
from chaski.ml.sharded.files import SameFile
from chaski.ml.sharded.head import Members
from chaski.ml.sharded.layers import LayerSplit
from chaski.ml.sharded.pieces import cut_graph
from chaski.ml.sharded.placement import HeldBuffer, Splitting
from chaski.ml.sharded.plan import PlannedExperts, ShardedPlan
from chaski.ml.sharded.rows import RowSplit
from chaski.ml.sharded.shares import row_units, usual_shares

__all__ = ["ShardedBackend"]

_log = logging.getLogger(__name__)

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


class ShardedBackend:
    """A backend of several members, each with its own backend, with the same bits as one backend.

    Each layer, or each row of a matrix, is on one member only. Members read weights from their own files.
    """

    def __init__(
        self,
        members: Members,
        split: str,
        shares: Sequence[float] | None,
        behind_first: int | None = None,
        overrides: Sequence[tuple[str, int]] = (),
        name: str = "sharded",
        expert_slots: int = 0,
    ) -> None:
        """Create a backend of `members`. The last backend of these members to close also closes the members.

        shares  each member's share of the layers or of all rows; None for `usual_shares`
        behind_first  number of trailing layers on the members after the first, see `LayerSplit`
        overrides  regular expressions for names of weights, each with the member that has these
        name  the backend's name for `open_backend`
        expert_slots  see `LayerSplit`
        """
        self.name = name
        self._members = members
        self._split = split
        self._shares = shares
        self._behind_first = behind_first
        self._overrides = overrides
        self._expert_slots = expert_slots
        self._tiers: ExpertTiers | None = None
        self._rounds = members.rule.startswith("native") and members.are_far
        self._number = members.add_backend()
        self._splitting: Splitting = RowSplit([1] * len(members)) if split == "rows" else LayerSplit([])
        self._types: dict[Weight, QuantType] = {}
        self._num_plans = self._num_rows = self._num_tables = 0
        self._num_buffers = [0] * len(members)
        self._is_closed = False

    @property
    def rule(self) -> str:
        """The members' rule, and the cut of the model, which kept content of cells depends on as well."""
        return f"{self._members.rule} by {self._splitting.description}"

    @property
    def default_kv_dtype(self) -> DType:
        return DType(self._members.about["kv_dtype"])

    @property
    def cache_config(self) -> CacheConfig:
        return encoding.cache_config(self._members.about["cache_config"])

    @property
    def stages(self) -> int:
        """The number of members if they have consecutive layers; one if all take part in every layer."""
        is_in_order = self._split == "layers" and not self._overrides
        return len(self._members) if is_in_order else 1

    @property
    def launches_ahead(self) -> bool:
        """False: a batch that needs results of another one is launched when the head has received them."""
        return False

    def devices(self) -> Sequence[Device]:
        replies = self._ask_all("devices")
        found = [
            encoding.device(fields, self._device_name(member, fields["name"]))
            for member, (told, _) in enumerate(replies)
            for fields in told["devices"]
        ]
        return list({device.name: device for device in found}.values())

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        self._types = {weight: info.type for weight, info in weights}
        self._splitting = self._usual_split(sum(info.nbytes for _, info in weights))
        on_each = self._splitting.place(weights)
        if isinstance(self._splitting, LayerSplit) and self._splitting.tiers.layers:
            self._tiers = self._splitting.tiers
        for weight, _ in weights:
            weight.handle = self._splitting.held[weight]
        paths = self._paths = list(dict.fromkeys(info.path for _, info in weights))
        files = [SameFile.of(path) for path in paths]
        described = [{"path": f.path, "num_bytes": f.num_bytes, "fingerprint": f.fingerprint} for f in files]
        self._members.ask_all(
            "place",
            [
                {
                    "backend": self._number,
                    "files": described,
                    "weights": [encoding.encode_weight(weight) for weight, _ in some],
                    "tensors": [encoding.encode_tensor(info, paths.index(info.path)) for _, info in some],
                }
                for some in on_each
            ],
        )

    def load(self, progress: ProgressCallback) -> None:
        """Load the members' parts. No member allocates memory before all are known to have enough."""
        needed, devices = self.memory(), {device.name: device for device in self.devices()}
        for held in needed.devices:
            available = devices[held.device].available_bytes
            if held.total - held.shared > available:
                raise OutOfMemoryError(
                    f"weights, caches and plans need {(held.total - held.shared) / 1e9:.2f} GB on "
                    f"{held.device}, but {available / 1e9:.2f} GB of memory are available there; name more "
                    "nodes, or use a smaller context or fewer parallel sequences"
                )
        fields = [{"backend": self._number}] * len(self._members)
        self._members.ask_all("load", fields, share=progress)
        progress(1.0)

    def wait_loaded(self) -> None:
        self._ask_all("wait_loaded")

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        on_each = self._splitting.heads(role, heads, layer)
        buffers: list[KVBuffer | None] = []
        for member, count in enumerate(on_each):
            if not count:
                buffers.append(None)
                continue
            self._members[member].ask("kv_buffer", self._storage(role, cells, count, size, dtype, layer))
            buffers.append(KVBuffer(role, cells, count, size, dtype, self._num_buffers[member]))
            self._num_buffers[member] += 1
        is_cut = on_each[0] not in (0, heads)
        return KVBuffer(role, cells, heads, size, dtype, HeldBuffer(buffers, is_cut))

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        found: dict[str, int] = {}
        for member, count in enumerate(self._splitting.heads(role, heads, layer)):
            if count:
                fields = self._storage(role, cells, count, size, dtype, layer)
                reply, _ = self._members[member].ask("kv_bytes", fields)
                for device, num_bytes in reply["bytes"].items():
                    found[self._device_name(member, device)] = num_bytes
        return found

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> ShardedCells:
        number, self._num_rows = self._num_rows, self._num_rows + 1
        fields = []
        for member in range(len(self._members)):
            own = [_held(buffer).buffers[member] for buffer in buffers]
            numbers = [buffer.handle for buffer in own if buffer is not None]
            fields.append({"backend": self._number, "buffers": numbers})
        self._members.ask_all("cell_rows", fields)
        return ShardedCells(self._members, [bool(each["buffers"]) for each in fields], self._number, number)

    def compile(self, graph: Graph) -> ShardedPlan:
        graph = self._splitting.prepared(graph)
        free = FreeNodes()
        placed = self._splitting.place_nodes(graph, free)
        note_adapted(graph, placed, self._splitting.units)
        blocks = Rounding(graph, self._types.__getitem__).blocks() if self._rounds else {}
        pieces, results = cut_graph(graph, placed, self._splitting.held, free, self._splitting.units, blocks)
        types = product_types(graph, self._types.__getitem__)
        fields, arrays = [], []
        for member, some in enumerate(pieces):
            for piece in some:
                piece.graph.product_types = types
            own: encoding.Arrays = []
            values = [result.value for result in results.values() if member in result.members]
            encoded = encoding.encode_pieces(some, own)
            fields.append({"backend": self._number, "pieces": encoded, "results": values})
            arrays.append(own)
        self._members.ask_all("compile", fields, arrays)
        number, self._num_plans = self._num_plans, self._num_plans + 1
        experts = None
        if self._tiers is not None and isinstance(self._splitting, LayerSplit) and self._splitting.routes:
            experts = PlannedExperts(self._tiers, self._splitting.routes, self._move_experts)
        return ShardedPlan(graph, pieces, results, self._members, self._number, number, experts)

    def _move_experts(self) -> None:
        """Put experts into slots that are due to change; those that cannot be read stay where they are."""
        assert self._tiers is not None
        moves = self._tiers.due()
        for member in dict.fromkeys(move.layer.gpu for move in moves):
            own = [move for move in moves if move.layer.gpu == member]
            fields: dict[str, Any] = {"backend": self._number, "slots": [], "tensors": []}
            for move in own:
                for weight, info in move.tensors():
                    fields["slots"].append([weight, move.slot])
                    fields["tensors"].append(encoding.encode_tensor(info, self._paths.index(info.path)))
            try:
                with self._tiers.moving(own):
                    self._members[member].ask("put_experts", fields)
            except ModelError as error:
                _log.warning("experts stay where they are: %s", error)

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        fields = {"backend": self._number, "slots": slots, "matrices": matrices, "max_width": max_width}
        self._members.ask_all("adapter_table", [fields] * len(self._members))
        number, self._num_tables = self._num_tables, self._num_tables + 1
        handle = ShardedSlots(self._members, self._number, number)
        return AdapterTable(slots, matrices, max_width, handle)

    def sibling(self) -> ShardedBackend:
        self._ask_all("sibling")
        places = self._behind_first, self._overrides, self.name, self._expert_slots
        return ShardedBackend(self._members, self._split, self._shares, *places)

    def memory(self) -> Memory:
        parts = []
        for member, (fields, _) in enumerate(self._ask_all("memory")):
            names = {held["device"]: self._device_name(member, held["device"]) for held in fields["memory"]}
            parts.append(encoding.decode_memory(fields, names))
        memory = reduce(Memory.__add__, parts)
        return memory if self._tiers is None else replace(memory, experts=self._tiers.counts(memory.experts))

    def close(self) -> None:
        """Release the memory of all members that are not lost."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(ClusterError):
            self._ask_all("close")
        self._members.remove_backend(self._number)

    def _ask_all(self, kind: str) -> list[Any]:
        return self._members.ask_all(kind, [{"backend": self._number}] * len(self._members))

    def _storage(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None
    ) -> Mapping[str, Any]:
        shape = [cells, heads, size]
        return {
            "backend": self._number,
            "role": role.value,
            "shape": shape,
            "dtype": dtype.value,
            "layer": layer,
        }

    def _device_name(self, member: int, device: str) -> str:
        return self._members[member].node.device_name(device)

    def _usual_split(self, num_bytes: int) -> Splitting:
        """Split by the given shares, or else by the members' speed and free memory."""
        shares, are_known = self._shares, True
        if shares is None:
            asked = {"backend": self._number, "measure": True}
            replies = self._members.ask_all("devices", [asked] * len(self._members))
            memory = [max(1.0, found["devices"][0]["available_bytes"]) for found, _ in replies]
            speeds = [found["speed"] for found, _ in replies]
            shares, are_known = usual_shares(num_bytes, memory, speeds), all(speeds)
        if self._split == "layers":
            return LayerSplit(shares, self._behind_first, self._overrides, self._expert_slots)
        return RowSplit(row_units(shares) if are_known else [1] * len(shares))


class ShardedCells:
    """`CellRows` of several members. A block consists of the members' blocks, one after the other."""

    def __init__(self, members: Members, has_rows: Sequence[bool], backend: int, number: int) -> None:
        self._together = members
        self._members = [members[member] for member, has in enumerate(has_rows) if has]
        self._fields = {"backend": backend, "rows": number}
        self._sizes: dict[int, Sequence[int]] = {}

    def num_bytes(self, room: int) -> int:
        return sum(self._sizes_of(room))

    def read(self, cells: I32, block: U8, first: int, room: int) -> None:
        parts = self._parts(block, room)
        is_whole = len(cells) == room
        requests = [
            member.request("read_cells", self._places(first, room), [cells] if is_whole else [cells, part])
            for member, part in zip(self._members, parts, strict=True)
        ]
        self._together.send_together(requests)
        for request, part in zip(requests, parts, strict=True):
            part[:] = request.reply.result()[1][0]

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        requests = [
            member.request("write_cells", self._places(first, room), [cells, part])
            for member, part in zip(self._members, self._parts(block, room), strict=True)
        ]
        self._together.send_together(requests)
        for request in requests:
            request.reply.result()

    def _places(self, first: int, room: int) -> Mapping[str, Any]:
        return {**self._fields, "first": first, "room": room}

    def _parts(self, block: U8, room: int) -> Sequence[U8]:
        found, begin = [], 0
        for size in self._sizes_of(room):
            found.append(block[begin : begin + size])
            begin += size
        return found

    def _sizes_of(self, room: int) -> Sequence[int]:
        if room not in self._sizes:
            asked = [member.start("cell_bytes", {**self._fields, "room": room}) for member in self._members]
            self._sizes[room] = [reply.result()[0]["bytes"] for reply in asked]
        return self._sizes[room]


def _held(buffer: KVBuffer) -> HeldBuffer:
    assert isinstance(buffer.handle, HeldBuffer), "a buffer of another backend"
    return buffer.handle
