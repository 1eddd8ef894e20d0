"""Experts that do not all fit into memory: the budget, the files, and the memory that other programs need.

`native/include/expert_store.h` reads experts when tokens choose them. This side decides how much memory they
may have, and gives memory back when other programs need it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from chaski import _native
from chaski.errors import OptionError
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import LayerExperts
from chaski.ml.cpu.weight_files import laid_out_type, unreadable
from chaski.ml.graph import Weight
from chaski.ml.machine import available_memory, spare_memory, total_memory
from chaski.ml.plan import FailedRowsError

__all__ = ["ExpertMemory", "is_experts"]

_EXPERTS = re.compile(r"blk\.(\d+)\.\w+_(?:ch)?exps\b")

# Reads that the disk has at the same time. Most disks reach their full speed with fewer.
_READERS = 8
# Milliseconds for which a batch tries reads again that fail.
_PATIENCE = 500

# Experts take at most this share of the memory that is left beside dense weights, so that caches find room.
_PLANNED = 0.75
# Seconds between two looks at the free memory.
_LOOK = 1.0
# Changes of the free memory that are smaller than this share of the machine's memory change nothing.
_STEP = 0.01

Placed = Sequence[tuple[Weight, TensorInfo]]


def is_experts(weight: Weight, info: TensorInfo) -> bool:
    """Return whether a weight is a stack with a matrix for each expert of a layer."""
    return len(info.shape) == 3 and not weight.plain and _EXPERTS.match(weight.name) is not None


class _Stack(Struct, frozen=True):
    """A stack, its weight's name and its tensor."""

    native: _native.ExpertStack
    name: str
    info: TensorInfo


class ExpertMemory:
    """The memory of a model's experts. `budget` is the largest number of bytes that they may take."""

    def __init__(self, isa: str, weights: Placed) -> None:
        """Give stacks of experts places in their files. Raises ModelError if a file cannot be opened."""
        self._store = _native.expert_store(isa)
        self._stacks: list[_Stack] = []
        self.budget = 0
        self._used = 0
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        files = {path: _opened(path) for path in dict.fromkeys(info.path for _, info in weights)}
        # The stacks of a layer follow each other, in the order of a forward pass.
        for weight, info in sorted(weights, key=lambda pair: _layer_of(pair[0])):
            type, step = laid_out_type(info.type), info.strides[0]
            weight.handle = self._store.add(
                layer=_layer_of(weight),
                type=int(type),
                rows=info.shape[1],
                columns=info.shape[2],
                stride=info.strides[1],
                is_interleaved=type is not info.type,
                offsets=[info.offset + index * step for index in range(info.shape[0])],
                file=files[info.path],
            )
            self._stacks.append(_Stack(weight.handle, weight.name, info))

    @property
    def total_bytes(self) -> int:
        """Bytes of all experts."""
        return self._store.total_bytes

    def plan(self, asked: int | None, left: int) -> bool:
        """Set the budget: the bytes that the user asks for, or a share of the bytes that are left.

        Return False if these are too few. Raises OptionError if the user asks for too few.
        """
        least = self._store.least_bytes
        if asked is not None and asked < least:
            raise OptionError(
                f"expert_memory = {asked} is too little for {self._stacks[0].info.path.name}: two experts of "
                f"each layer take {least} bytes; use at least that much"
            )
        self.budget = min(self.total_bytes, int(_PLANNED * left) if asked is None else asked)
        return self.budget >= least

    def start(self, asked: int | None, others: int) -> None:
        """Take memory and begin to read. `others`: bytes that caches, plans and dense weights will take.

        The budget grows to what is free, unless the user has set it.
        """
        if asked is None:
            free = available_memory() - others - spare_memory()
            self.budget = min(self.total_bytes, max(self.budget, free))
        self._used = self.budget
        self._store.start(self.budget, _READERS, _PATIENCE)
        self._thread = threading.Thread(target=self._watch, name="chaski-experts", daemon=True)
        self._thread.start()

    def check(self, dims: Sequence[str]) -> None:
        """Raise FailedRowsError if rows of the last batch lacked experts that could not be read.

        dims: the names of the run-time dimensions of its plan
        """
        missing = self._store.take_missing()
        if missing is None:
            return
        number, code, places = missing
        rows: dict[str, list[int]] = {}
        for dim, row in places:
            rows.setdefault(dims[dim], []).append(row)
        stack = self._stacks[number]
        shortened = f"{stack.name} is missing, because the file has become shorter"
        error = unreadable(stack.info.path, shortened if code < 0 else os.strerror(code))
        raise FailedRowsError(str(error), rows)

    def layers(self) -> tuple[LayerExperts, ...]:
        """Return what each layer has requested and read so far."""
        found: dict[int, LayerExperts] = {}
        for stack in self._stacks:
            counts = LayerExperts(*stack.native.counts, len(stack.native))
            earlier = found.get(counts.layer)
            found[counts.layer] = counts if earlier is None else earlier + counts
        return tuple(found.values())

    def close(self) -> None:
        """Stop reading."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
        self._store.stop()

    def _watch(self) -> None:
        """Follow the free memory: give memory back before the system has to swap, and take it again later."""
        while not self._is_closing.wait(_LOOK):
            self.adapt(available_memory())

    def adapt(self, free: int) -> None:
        """Change the memory of experts so that the spare share of the machine's memory stays free.

        free: bytes that are available now
        """
        wanted = min(self.budget, self._store.filled_bytes + free - spare_memory())
        if abs(wanted - self._used) >= _STEP * total_memory() or wanted == self.budget != self._used:
            self._used = max(wanted, self._store.least_bytes)
            self._store.resize(self._used)


def _layer_of(weight: Weight) -> int:
    found = _EXPERTS.match(weight.name)
    assert found is not None, f"{weight.name} is no stack of experts"
    return int(found[1])


def _opened(path: Path) -> _native.DirectFile:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise unreadable(path, str(error)) from error
    try:
        return _native.DirectFile(descriptor)
    finally:
        os.close(descriptor)
