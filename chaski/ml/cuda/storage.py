"""Keys and values of a layer on a GPU, laid out as the native core lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski import _native
from chaski.errors import OutOfMemoryError
from chaski.formats.quant import QuantType
from chaski.ml.backend import stored_type
from chaski.ml.cuda.device import GPU, KernelLaunch, Program, pack, ran_out
from chaski.ml.graph import DType, KVBuffer, KVRole

__all__ = ["CUDACells", "KVStorage"]

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


class KVStorage:
    """Storage that is taken when the model is loaded."""

    def __init__(self, gpu: GPU, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> None:
        self.cells, self.heads, self.size, self.dtype = cells, heads, size, dtype
        self.in_panels = role is KVRole.KEYS
        self.bytes = num_bytes(role, cells, heads, size, dtype)
        self._gpu = gpu
        self.address = 0

    @staticmethod
    def of(buffer: KVBuffer) -> KVStorage:
        """The storage of a buffer. Raises UnsupportedError for what kernels do not have yet."""
        assert isinstance(buffer.handle, KVStorage), "a buffer of another backend"
        return buffer.handle

    @property
    def type_name(self) -> str:
        """The type as kernels name it."""
        return f"DType::{self.dtype.name}"

    @property
    def program(self) -> Program:
        """The kernels that write it."""
        return Program("storage", (("CHASKI_STORED", self.type_name),))

    @property
    def fields(self) -> tuple[int, ...]:
        """What kernels are told of it."""
        self.take()
        return self.address, self.cells, self.heads, self.size, int(self.in_panels)

    @property
    def cell_bytes(self) -> int:
        """Bytes that the host keeps of a cell."""
        if self.dtype is DType.I16:
            return self.heads * (2 * self.size + 4)
        type = QuantType[self.dtype.name]
        return self.heads * self.size // type.block_size * type.block_bytes

    def take(self) -> None:
        """Take the memory, with zeros in it."""
        if self.address == 0:
            self.address = self._gpu.allocate(self.bytes)
            self._gpu.zero(self.address, self.bytes)

    def release(self) -> None:
        """Give it back."""
        if self.address != 0:
            self._gpu.free(self.address)
            self.address = 0


def num_bytes(role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> int:
    """Bytes of a storage. Raises UnsupportedError for sizes of heads that the type cannot have."""
    type = int(stored_type(role, size, dtype))
    return _native.kv_storage_bytes(cells, heads, size, type, role is KVRole.KEYS) + 64


class CUDACells:
    """`CellRows`: a block has the cells of one storage behind those of another."""

    def __init__(self, gpu: GPU, storages: Sequence[object]) -> None:
        self._gpu = gpu
        self._storages = [storage for storage in storages if isinstance(storage, KVStorage)]
        assert len(self._storages) == len(storages), "a buffer of another backend"

    def num_bytes(self, room: int) -> int:
        return sum(room * storage.cell_bytes for storage in self._storages)

    def read(self, cells: I32, block: U8, first: int, room: int) -> None:
        self._move(cells, block, first, room, is_write=False)

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        self._move(cells, block, first, room, is_write=True)

    def _move(self, cells: I32, block: U8, first: int, room: int, is_write: bool) -> None:
        """Through memory of the device that has a block's bytes, and lists of cells behind them."""
        size = -(-self.num_bytes(room) // 256) * 256
        try:
            address = self._gpu.allocate(size + 4 * len(cells))
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        try:
            staged = self._gpu.staging(size + 4 * len(cells))
            staged[: len(block)] = block
            staged[size:] = np.ascontiguousarray(cells, np.int32).view(np.uint8)
            self._gpu.upload(address, staged)
            at = address
            launches = []
            for storage in self._storages:
                launches.append(self._launch(storage, address + size, len(cells), first, room, at, is_write))
                at += room * storage.cell_bytes
            self._gpu.run(self._gpu.record(launches))
            if is_write:
                self._gpu.wait()
            else:
                self._gpu.download(address, block[: self.num_bytes(room)])
        finally:
            self._gpu.free(address)

    def _launch(self, storage: KVStorage, cells: int, count: int, *place: Any) -> KernelLaunch:
        first, room, address, is_write = place
        values = (cells, count, first, room, address, int(is_write), *storage.fields)
        threads = count * storage.cell_bytes  # at least as many as a cell has parts
        kernel = self._gpu.kernel(storage.program, "move_cells")
        return KernelLaunch(kernel, (-(-threads // 256), 1, 1), 256, 0, pack("PqqqPqPqqqq", values))
