"""Keys and values of a layer on a GPU, in the layout of the native core."""

from __future__ import annotations

from collections.abc import Sequence

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.backend import stored_type
from chaski.ml.cuda.device import GPU, Program
from chaski.ml.graph import DType, KVBuffer, KVRole

__all__ = ["KVStorage", "num_bytes"]


class KVStorage:
    """Storage whose memory is allocated when the model is loaded."""

    def __init__(self, gpu: GPU, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> None:
        self.cells, self.heads, self.size, self.dtype = cells, heads, size, dtype
        self.in_panels = role is KVRole.KEYS
        self.bytes = num_bytes(role, cells, heads, size, dtype)
        self._gpu = gpu
        self.address = 0

    @staticmethod
    def of(buffer: KVBuffer) -> KVStorage:
        """Return a buffer's storage. Raises UnsupportedError for types that kernels do not support yet."""
        assert isinstance(buffer.handle, KVStorage), "a buffer of another backend"
        return buffer.handle

    @property
    def type_name(self) -> str:
        """The type's name in kernels."""
        return f"DType::{self.dtype.name}"

    @property
    def program(self) -> Program:
        """The kernels that write the storage."""
        return Program("storage", (("CHASKI_STORED", self.type_name),))

    @property
    def fields(self) -> tuple[int, ...]:
        """The fields that kernels receive."""
        self.take()
        return self.address, self.cells, self.heads, self.size, int(self.in_panels)

    @property
    def widths(self) -> Sequence[int]:
        """Bytes of each part of a row that the host keeps: its elements, and its scale if it has one."""
        if self.dtype is DType.I16:
            return 2 * self.size, 4
        type = QuantType[self.dtype.name]
        return (self.size // type.block_size * type.block_bytes,)

    @property
    def cell_bytes(self) -> int:
        """Bytes of a cell that the host keeps."""
        return self.heads * sum(self.widths)

    def take(self) -> None:
        """Allocate the memory and fill it with zeros."""
        if self.address == 0:
            self.address = self._gpu.allocate(self.bytes)
            self._gpu.zero(self.address, self.bytes)

    def release(self) -> None:
        """Free the memory."""
        if self.address != 0:
            self._gpu.free(self.address)
            self.address = 0


def num_bytes(role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> int:
    """Return the bytes of a storage. Raises UnsupportedError for head sizes that the type does not allow."""
    type = int(stored_type(role, size, dtype))
    return _native.kv_storage_bytes(cells, heads, size, type, role is KVRole.KEYS) + 64
