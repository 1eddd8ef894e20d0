"""Keys and values of a layer on a GPU, laid out as the native core lays them out."""

from __future__ import annotations

from collections.abc import Sequence

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.backend import stored_type
from chaski.ml.cuda.device import GPU, Program
from chaski.ml.graph import DType, KVBuffer, KVRole

__all__ = ["KVStorage", "num_bytes"]


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
        """The form in which kernels receive it."""
        self.take()
        return self.address, self.cells, self.heads, self.size, int(self.in_panels)

    @property
    def widths(self) -> Sequence[int]:
        """Bytes of each part that the host keeps of a row: its elements, and its scale if it has one."""
        if self.dtype is DType.I16:
            return 2 * self.size, 4
        type = QuantType[self.dtype.name]
        return (self.size // type.block_size * type.block_bytes,)

    @property
    def cell_bytes(self) -> int:
        """Bytes that the host keeps of a cell."""
        return self.heads * sum(self.widths)

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
