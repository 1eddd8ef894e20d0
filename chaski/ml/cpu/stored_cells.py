"""Cells of key/value storage as bytes that the host keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski import _native

__all__ = ["StoredCells"]

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


class StoredCells:
    """`CellRows` of native storages. A block is itself a small storage, with one cell per place."""

    def __init__(self, pool: _native.ThreadPool, isa: str, storages: Sequence[object]) -> None:
        self._pool = pool
        self._isa = isa
        self._storages = [storage for storage in storages if isinstance(storage, _native.KVStorage)]
        assert len(self._storages) == len(storages), "a buffer of another backend"

    def num_bytes(self, room: int) -> int:
        return _native.block_bytes(self._storages, room)

    def read(self, cells: I32, block: U8, first: int, room: int) -> None:
        self._copy(cells, block, first, room, is_write=False)

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        self._copy(cells, block, first, room, is_write=True)

    def _copy(self, cells: I32, block: U8, first: int, room: int, is_write: bool) -> None:
        places = np.arange(first, first + len(cells), dtype=np.int32)
        _native.copy_block(
            self._pool, self._isa, self._storages, cells, block, places, room, is_write=is_write
        )
