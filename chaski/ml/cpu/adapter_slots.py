"""The adapters of the native backend. Each has its own memory, which holds its matrices in panels."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np

from chaski import _native
from chaski.errors import AdapterError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.quant import Bytes, QuantType
from chaski.ml.backend import HOST, ByDevice, LoraMatrices

__all__ = ["CPUAdapterSlots", "held_type", "pack_matrix", "packed_sizes"]

_ALIGNMENT = 64


class _ReadyMemory:
    """Memory for the next adapter, allocated in advance by another thread.

    Most of the time to load an adapter is the time that the system takes to allocate memory page by page.
    """

    def __init__(self) -> None:
        self._ready: tuple[int, _native.Weights] | None = None
        self._thread: threading.Thread | None = None

    @property
    def num_bytes(self) -> int:
        return 0 if self._ready is None else self._ready[0]

    def take(self, num_bytes: int) -> _native.Weights:
        """Return memory of at least `num_bytes` bytes."""
        ready, self._ready = self._ready, None
        if ready is not None and num_bytes <= ready[0] <= 2 * num_bytes:
            return ready[1]
        return _native.Weights(num_bytes)

    def prepare(self, num_bytes: int) -> None:
        """Begin to allocate `num_bytes` bytes in the background."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._prepare, args=(num_bytes,), daemon=True)
            self._thread.start()

    def _prepare(self, num_bytes: int) -> None:
        memory = _native.Weights(num_bytes)
        memory.vector(0, num_bytes // 4)[:] = 0
        self._ready = num_bytes, memory


class CPUAdapterSlots:
    """`AdapterSlots` of the native backend. `native` is the object that the steps of plans read."""

    def __init__(self, slots: int, matrices: int) -> None:
        self.native = _native.LoraTable(slots, matrices)
        self._held: dict[int, _native.Weights] = {}
        self._memory = _ReadyMemory()

    @property
    def ready_bytes(self) -> ByDevice:
        return {HOST: self._memory.num_bytes}

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        return {HOST: sum(size for _, size in packed_sizes(pairs))}

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        """Read an adapter with two threads, because new memory is slow to fill."""
        self.clear(slot)
        places = list(packed_sizes(pairs))
        sizes = [size for _, size in places]
        offsets = [0, *accumulate(sizes)][: len(sizes)]
        memory = self._memory.take(sum(sizes))

        def fill(part: slice) -> None:
            for (info, _), offset in zip(places[part], offsets[part], strict=True):
                pack_matrix(info, memory, offset)

        middle = len(places) // 2
        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(fill, slice(middle, None))
            fill(slice(middle))
            other.result()
        pair_offsets = zip(offsets[::2], offsets[1::2], strict=True)
        for (matrix, (a, b, scale)), (place_a, place_b) in zip(pairs.items(), pair_offsets, strict=True):
            self.native.put(
                slot,
                matrix,
                rank=a.shape[0],
                rows=b.shape[0],
                columns=a.shape[1],
                scale=scale,
                type_a=int(held_type(a)),
                type_b=int(held_type(b)),
                memory=memory,
                a=place_a,
                b=place_b,
            )
        self._held[slot] = memory
        self._memory.prepare(sum(sizes))

    def clear(self, slot: int) -> None:
        self.native.clear(slot)
        self._held.pop(slot, None)


def pack_matrix(info: TensorInfo, memory: _native.Weights, offset: int) -> None:
    """Copy a matrix into panels in memory. Raises AdapterError for values that are not finite."""
    rows, columns = info.shape
    if not _native.pack_lora(_values(info), int(held_type(info)), rows, columns, memory, offset):
        raise AdapterError(
            f"{info.path}: tensor {info.name} has values that are not finite numbers; training or conversion "
            "of the adapter failed"
        )


def packed_sizes(pairs: Mapping[int, LoraMatrices]) -> Iterator[tuple[TensorInfo, int]]:
    """Yield A and B of each pair, with the bytes that they take."""
    for pair in pairs.values():
        for info in (pair.a, pair.b):
            size = _native.packed_lora_bytes(int(held_type(info)), *info.shape)
            yield info, -(-size // _ALIGNMENT) * _ALIGNMENT


def held_type(info: TensorInfo) -> QuantType:
    """Return the type of a matrix in memory: the file's type, or floats for a type of blocks."""
    return info.type if info.type in (QuantType.F16, QuantType.BF16) else QuantType.F32


def _values(info: TensorInfo) -> Bytes:
    if info.type.block_size > 1:
        return dequantize(info.data, info.type, info.shape).reshape(-1).view(np.uint8)
    return np.ascontiguousarray(info.data).reshape(-1)
