"""The adapters on a GPU: their matrices in panels, and a table of the matrices' addresses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chaski import _native
from chaski.ml.backend import ByDevice, LoraMatrices
from chaski.ml.cpu.adapter_slots import held_type, pack_matrix, packed_sizes
from chaski.ml.cuda.device import GPU, pack

__all__ = ["CUDAAdapterSlots"]

_LANES = 16
# A pair in the table: `Lora` of kernels/adapters.cu.
_PAIR = "PPqqqff"
_PAIR_BYTES = 48


class CUDAAdapterSlots:
    """`AdapterSlots` of a GPU. Plans read the table [slot][matrix] at `address`."""

    def __init__(self, gpu: GPU, slots: int, matrices: int) -> None:
        self._gpu = gpu
        self._device = gpu.device.name
        self._table = np.zeros((slots, matrices * _PAIR_BYTES), np.uint8)
        self._widths = np.zeros(slots, np.int64)
        self._held: dict[int, tuple[int, int]] = {}
        self._address = 0

    @property
    def address(self) -> int:
        """The address of the table. The first access allocates its memory."""
        if self._address == 0:
            self._address = self._gpu.allocate(self._table.nbytes)
            self._upload(self._address, self._table)
        return self._address

    @property
    def ready_bytes(self) -> ByDevice:
        return {}

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self._table)

    @property
    def table_bytes(self) -> int:
        """Bytes of the table, without the adapters."""
        return self._table.nbytes

    def width(self, slot: int) -> int:
        """The most floats of t that the adapter of a slot adds to a row, over all matrices."""
        return int(self._widths[slot])

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        return {self._device: sum(size for _, size in packed_sizes(pairs))}

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        self.clear(slot)
        size = sum(self.num_bytes(pairs).values())
        memory = _native.Weights(size)
        places = []
        end = 0
        for info, each in packed_sizes(pairs):
            pack_matrix(info, memory, end)
            places.append(end)
            end += each
        address = self._gpu.allocate(size)
        self._held[slot] = address, size
        self._upload(address, memory.vector(0, size // 4).view(np.uint8))
        row = self._table[slot]
        for (matrix, (a, b, scale)), place_a, place_b in zip(
            pairs.items(), places[::2], places[1::2], strict=True
        ):
            rank = a.shape[0]
            values = (
                address + place_a,
                address + place_b,
                rank,
                int(held_type(a)),
                int(held_type(b)),
                scale,
                0,
            )
            entry = np.frombuffer(pack(_PAIR, values), np.uint8)
            row[matrix * _PAIR_BYTES : (matrix + 1) * _PAIR_BYTES] = entry
            self._widths[slot] = max(self._widths[slot], -(-rank // _LANES) * _LANES)
        self._write(slot)

    def clear(self, slot: int) -> None:
        if slot not in self._held:
            return
        self._table[slot] = 0
        self._widths[slot] = 0
        self._write(slot)
        self._gpu.free(self._held.pop(slot)[0])

    def release(self) -> None:
        """Release all memory."""
        for address, _ in self._held.values():
            self._gpu.free(address)
        self._held.clear()
        if self._address:
            self._gpu.free(self._address)
            self._address = 0

    def _write(self, slot: int) -> None:
        """Update a slot on the device, once no work computes with it."""
        self._gpu.wait()
        self._upload(self.address + slot * self._table[slot].nbytes, self._table[slot])

    def _upload(self, address: int, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
        staged = self._gpu.staging(data.nbytes)
        staged[:] = data.reshape(-1)
        self._gpu.upload(address, staged)
        self._gpu.wait_uploads()
