"""The work of a member for one head, which is a process that runs a model and has parts computed here."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from chaski import __version__
from chaski.errors import ChaskiError, ClusterError, class_name
from chaski.formats.gguf_tensors import TensorInfo
from chaski.ml.backend import (
    HOST,
    AdapterSlots,
    Backend,
    BackendOptions,
    CellRows,
    Device,
    DeviceMemory,
    LoraMatrices,
    Memory,
)
from chaski.ml.graph import AdapterTable, DType, KVBuffer, KVRole, Weight
from chaski.ml.machine import available_memory, cpu_name, physical_cores, total_memory
from chaski.ml.plan import FailedRowsError
from chaski.ml.sharded import encoding
from chaski.ml.sharded.encoding import Fields
from chaski.ml.sharded.exchange import Exchange
from chaski.ml.sharded.expert_tiers import HasExpertSlots
from chaski.ml.sharded.files import SameFile
from chaski.ml.sharded.frames import Channel, Message
from chaski.ml.sharded.member_plan import MemberPlan, Rows
from chaski.strangers import PATIENCE

__all__ = ["ALIVE", "SILENCE", "Connect", "MeasureSpeed", "OpenBackend", "Session"]

_log = logging.getLogger(__name__)

ALIVE = 3.0
"""Seconds between two signs of life, in both directions."""

SILENCE = 15.0
"""Seconds without a sign of life after which the other end counts as lost."""

# Results of up to this many bytes are sent with the reply; the head requests larger ones.
_SMALL = 1 << 16

OpenBackend = Callable[[BackendOptions], Backend]
"""Opens the backend that a member computes with."""

MeasureSpeed = Callable[[], float]
"""Measures how many bytes of weights a member reads per second."""

Connect = Callable[[Any], Channel]
"""Connects to another member by its address. Raises ClusterError if it cannot be reached."""


class _Part:
    """A backend of a session with all its objects, by number."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.weights: list[Weight] = []
        self.files: list[Path] = []
        self.contents: list[np.memmap[Any, np.dtype[np.uint8]]] = []
        self.buffers: list[KVBuffer] = []
        self.cell_rows: list[CellRows] = []
        self.plans: list[MemberPlan] = []
        self.tables: list[AdapterTable] = []


class Session:
    """A member's work for one head, from the first connection to the end, which releases everything.

    One thread reads requests, another answers them in order, and a third sends signs of life.
    """

    def __init__(
        self,
        connect: Connect,
        opening: OpenBackend,
        folders: Sequence[Path],
        requests: Channel,
        speed: MeasureSpeed | None = None,
    ) -> None:
        self._connect = connect
        self._speed = speed
        self._opening = opening
        self._folders = folders
        self._requests = requests
        self._replies: Channel | None = None
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self.exchange = Exchange()
        self._own = 0
        self._parts: list[_Part] = []
        self._results: dict[int, Mapping[str, Rows]] = {}
        self._handlers: Mapping[str, Callable[[Fields, list[Any]], tuple[Fields, Sequence[Any]]]] = {
            "open": self._open,
            "join": self._join,
            "devices": self._devices,
            "sibling": self._sibling,
            "place": self._place,
            "put_experts": self._put_experts,
            "kv_buffer": self._kv_buffer,
            "kv_bytes": self._kv_bytes,
            "cell_rows": self._cell_rows,
            "cell_bytes": self._cell_bytes,
            "read_cells": self._read_cells,
            "write_cells": self._write_cells,
            "adapter_table": self._adapter_table,
            "adapters_ready": self._adapters_ready,
            "adapter_bytes": self._adapter_bytes,
            "put_adapter": self._put_adapter,
            "clear_adapter": self._clear_adapter,
            "compile": self._compile,
            "memory": self._memory,
            "load": self._load,
            "wait_loaded": self._wait_loaded,
            "launch": self._launch,
            "rows": self._rows,
            "close": self._close,
        }

    def run(self, replies: Channel) -> None:
        """Answer requests until the head ends or is lost."""
        self._replies = replies
        for work in (self._read, self._tell_alive):
            threading.Thread(target=work, name="chaski-member", daemon=True).start()
        try:
            while (message := self._queue.get()) is not None:
                self._answer(*message)
        finally:
            self.end()
            _log.info("a head left; %.1f MB of values went to other nodes", self.exchange.num_bytes / 1e6)
            for part in self._parts:
                part.backend.close()
            self._parts, self._results = [], {}

    def end(self) -> None:
        """Close all connections, which ends `run`."""
        self._is_over.set()
        self._queue.put(None)
        self.exchange.close()
        self._requests.close()
        if self._replies is not None:
            self._replies.close()

    def _read(self) -> None:
        with suppress(OSError, EOFError, ClusterError):
            while True:
                fields, arrays = self._requests.receive()
                if "kind" in fields:
                    self._queue.put((fields, arrays))
        self.end()

    def _tell_alive(self) -> None:
        while not self._is_over.wait(ALIVE):
            with suppress(OSError):
                self._reply({})

    def _reply(self, fields: Fields, arrays: Sequence[Any] = ()) -> None:
        assert self._replies is not None
        self._replies.send(fields, arrays)

    def _answer(self, fields: Fields, arrays: list[Any]) -> None:
        number = fields["id"]
        try:
            handler = self._handlers.get(fields["kind"])
            if handler is None:
                raise ClusterError(f"{fields['kind']!r:.50} is not a request")
            found, given = handler(fields, arrays)
            self._reply({"id": number, **found}, given)
        except OSError:
            self.end()
        except Exception as error:
            if fields["kind"] == "launch":
                self.exchange.give_up(fields["run"])
            if not isinstance(error, ChaskiError | ValueError):
                _log.exception("a request of the head failed")
            kind = type(error).__name__
            known = "ValueError" if isinstance(error, ValueError) else "ClusterError"
            known = class_name(error) if isinstance(error, ChaskiError) else known
            failed = {"rows": error.rows} if isinstance(error, FailedRowsError) else {}
            with suppress(OSError):
                self._reply({"id": number, "error": known, "message": str(error) or kind, **failed})

    def _open(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        if fields["version"] != __version__:
            raise ClusterError(f"it runs chaski {__version__}, and this machine runs {fields['version']}")
        self._own = fields["member"]
        backend = self._opening(BackendOptions(fields["flash_attention"]))
        self._parts.append(_Part(backend))
        return {
            "rule": backend.rule,
            "kv_dtype": backend.default_kv_dtype.value,
            "cache_config": encoding.encode_cache_config(backend.cache_config),
        }, []

    def _join(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Connect to the members after this one, and wait for the members before it."""
        addresses = fields["addresses"]
        for member in range(self._own + 1, len(addresses)):
            for is_outwards in (True, False):
                channel = self._connect(addresses[member])
                hello = {"session": fields["session"], "member": self._own, "receives": is_outwards}
                channel.send({"kind": "values", **hello})
                if is_outwards:
                    self.exchange.send_to(member, channel.values())
                else:
                    self.exchange.receive_from(member, channel.values())
        if not self.exchange.wait_connected(len(addresses) - 1, PATIENCE):
            raise ClusterError("the other nodes did not connect to it; each node must reach all nodes before")
        return {}, []

    def _devices(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Return the devices of the backend, followed by this machine if it is not one of them."""
        devices = list(self._part(fields).backend.devices())
        if all(each.name != HOST for each in devices):
            memory = total_memory(), available_memory()
            devices.append(Device(HOST, cpu_name(), physical_cores(), (), *memory))
        speed = self._speed() if self._speed is not None and fields.get("measure") else None
        return {"devices": list(map(encoding.encode_device, devices)), "speed": speed}, []

    def _sibling(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        self._parts.append(_Part(self._part(fields).backend.sibling()))
        return {}, []

    def _place(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        files = part.files = [SameFile(**each).find(self._folders) for each in fields["files"]]
        contents = part.contents = [np.memmap(path, np.uint8, "r") for path in files]
        placed = []
        for weight, tensor in zip(fields["weights"], fields["tensors"], strict=True):
            own = encoding.decode_weight(weight)
            file = tensor["file"]
            if own.constant is None:
                info = encoding.decode_tensor(tensor, files[file], contents[file])
            else:
                info = TensorInfo.filled(own.name, own.shape, own.constant, files[file])
            placed.append((own, info))
        part.backend.place(placed)
        part.weights = [weight for weight, _ in placed]
        return {}, []

    def _put_experts(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        if not isinstance(part.backend, HasExpertSlots):
            raise ClusterError("its backend cannot exchange experts")
        contents = []
        for (weight, slot), tensor in zip(fields["slots"], fields["tensors"], strict=True):
            file = tensor["file"]
            info = encoding.decode_tensor(tensor, part.files[file], part.contents[file])
            contents.append((part.weights[weight], slot, info))
        part.backend.put_experts(contents)
        return {}, []

    def _kv_buffer(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        part.buffers.append(part.backend.kv_buffer(*_storage(fields)))
        return {}, []

    def _kv_bytes(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        return {"bytes": dict(self._part(fields).backend.kv_bytes(*_storage(fields)))}, []

    def _cell_rows(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        rows = part.backend.cell_rows([part.buffers[number] for number in fields["buffers"]])
        part.cell_rows.append(rows)
        return {}, []

    def _cell_bytes(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        return {"bytes": self._part(fields).cell_rows[fields["rows"]].num_bytes(fields["room"])}, []

    def _read_cells(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Fill the block in the request, or all of a new block if it contains none."""
        rows = self._part(fields).cell_rows[fields["rows"]]
        cells, *blocks = arrays
        block = blocks[0] if blocks else np.zeros(rows.num_bytes(fields["room"]), np.uint8)
        arriving = rows.read(cells, block, fields["first"], fields["room"])
        if arriving is not None:
            arriving.result()
        return {}, [block]

    def _write_cells(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        cells, block = arrays
        rows = self._part(fields).cell_rows[fields["rows"]]
        rows.write(cells, block, fields["first"], fields["room"])
        return {}, []

    def _adapter_table(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        sizes = fields["slots"], fields["matrices"], fields["max_width"]
        part.tables.append(part.backend.adapter_table(*sizes))
        return {}, []

    def _adapters_ready(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        return {"bytes": dict(self._slots(fields).ready_bytes)}, []

    def _adapter_bytes(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        return {"bytes": dict(self._slots(fields).num_bytes(_pairs(fields)))}, []

    def _put_adapter(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        self._slots(fields).put(fields["slot"], _pairs(fields, arrays))
        return {}, []

    def _clear_adapter(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        self._slots(fields).clear(fields["slot"])
        return {}, []

    def _slots(self, fields: Fields) -> AdapterSlots:
        return cast("AdapterSlots", self._part(fields).tables[fields["table"]].handle)

    def _compile(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        part = self._part(fields)
        pieces = encoding.decode_pieces(fields["pieces"], arrays, part.weights, part.buffers, part.tables)
        part.plans.append(MemberPlan(part.backend, pieces, fields["results"], self._own, self.exchange))
        return {}, []

    def _memory(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Return the memory of the backend, plus the memory of values between pieces."""
        part = self._part(fields)
        values = max((plan.bytes for plan in part.plans), default=0)
        held = part.backend.memory() + Memory((DeviceMemory(HOST, plans=values),))
        return encoding.encode_memory(held), []

    def _load(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        self._part(fields).backend.load(lambda share: self._reply({"id": fields["id"], "share": share}))
        return {}, []

    def _wait_loaded(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        self._part(fields).backend.wait_loaded()
        return {}, []

    def _launch(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Launch a plan. The reply contains small results."""
        for run in fields["released"]:
            self._results.pop(run, None)
        plan = self._part(fields).plans[fields["plan"]]
        inputs = dict(zip(fields["inputs"], arrays, strict=True))
        results = plan.run(fields["run"], inputs, fields["sizes"])
        self._results[fields["run"]] = results
        small = {name: rows.fetch() for name, rows in results.items() if rows.num_bytes <= _SMALL}
        return {"results": list(small)}, list(small.values())

    def _rows(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        rows = self._results[fields["run"]][fields["value"]]
        return {}, [rows.fetch(fields["begin"], fields["end"])]

    def _close(self, fields: Fields, arrays: list[Any]) -> tuple[Fields, Sequence[Any]]:
        """Release a backend. Its number is not reused."""
        part = self._part(fields)
        part.backend.close()
        part.weights, part.buffers, part.cell_rows, part.plans, part.tables = [], [], [], [], []
        part.contents = []
        return {}, []

    def _part(self, fields: Fields) -> _Part:
        return self._parts[fields["backend"]]


def _pairs(fields: Fields, arrays: Sequence[Any] = ()) -> Mapping[int, LoraMatrices]:
    """Return the matrices of an adapter by number; without arrays, only types and shapes are valid."""
    found = {}
    contents = iter(arrays)
    for matrix, a, b, scale in fields["pairs"]:
        both = [encoding.decode_content(each, next(contents, None)) for each in (a, b)]
        found[matrix] = LoraMatrices(both[0], both[1], scale)
    return found


def _storage(fields: Fields) -> tuple[KVRole, int, int, int, DType, int | None]:
    cells, heads, size = fields["shape"]
    return KVRole(fields["role"]), cells, heads, size, DType(fields["dtype"]), fields["layer"]
