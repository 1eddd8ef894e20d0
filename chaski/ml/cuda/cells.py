"""Copies of the cells of a GPU's storage, as bytes that the host keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import DeviceError, OutOfMemoryError
from chaski.ml.arena import aligned
from chaski.ml.cuda.device import GPU, KernelLaunch, pack, ran_out
from chaski.ml.cuda.storage import KVStorage

__all__ = ["CUDACells"]

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]

# The number of blocks that are copied to the host at the same time.
_TURNS = 8


class _Turn:
    """Host memory that the device copies a block to, until a thread has copied it on to the block."""

    def __init__(self) -> None:
        self.staged = np.empty(0, np.uint8)
        self.going_on: Future[None] | None = None

    def end(self) -> None:
        """Wait until the memory may be used again. Raises the error of the copy."""
        going_on, self.going_on = self.going_on, None
        if going_on is not None:
            going_on.result()


class CUDACells:
    """`CellRows` of a GPU. A block has the cells of all storages, one storage after the other.

    Blocks pass through memory of the device, and through memory of the host that the device copies at full
    speed. Threads copy the data from there to the block, so that no caller waits for that.
    """

    def __init__(self, gpu: GPU, storages: Sequence[object]) -> None:
        self._gpu = gpu
        self._storages = [storage for storage in storages if isinstance(storage, KVStorage)]
        assert len(self._storages) == len(storages), "a buffer of another backend"
        self._turns = [_Turn() for _ in range(_TURNS)]  # in the order of their last use
        self._threads: ThreadPoolExecutor | None = None
        self._address = self._size = 0

    def num_bytes(self, room: int) -> int:
        return sum(room * storage.cell_bytes for storage in self._storages)

    def read(self, cells: I32, block: U8, first: int, room: int) -> Future[None]:
        size = self.num_bytes(room)
        turn = self._begin(cells, size)
        self._move(cells, first, room, is_write=False)
        self._gpu.fetch(self._address, turn.staged[:size])
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_TURNS, "chaski-cells")
        places = slice(first, first + len(cells))
        turn.going_on = self._threads.submit(self._take, self._gpu.mark(), turn.staged, block, places, room)
        return turn.going_on

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        size = self.num_bytes(room)
        self._end()
        turn = self._begin(cells, size)
        turn.staged[:size] = block[:size]
        self._gpu.upload(self._address, turn.staged[:size])
        self._move(cells, first, room, is_write=True)
        self._gpu.wait_uploads()

    def release(self) -> None:
        """Release all memory, after all reads have reached their blocks."""
        with suppress(DeviceError):  # no caller waits for these copies any more
            self._end()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._turns = [_Turn() for _ in range(_TURNS)]
        if self._size:
            self._gpu.free(self._address)
            self._size = 0

    def _end(self) -> None:
        for turn in self._turns:
            turn.end()

    def _free_turn(self) -> _Turn:
        """Return the free turn with the most memory, or wait for the turn that was used first."""
        free = [turn for turn in self._turns if turn.going_on is None or turn.going_on.done()]
        turn = max(free, key=lambda turn: turn.staged.size, default=self._turns[0])
        self._turns.remove(turn)
        self._turns.append(turn)
        turn.end()
        return turn

    def _begin(self, cells: I32, size: int) -> _Turn:
        """Allocate memory, and upload `cells` to the place after `size` bytes."""
        needed = aligned(size, 256) + 4 * len(cells)
        turn = self._free_turn()
        try:
            if self._size < needed:
                if self._size:
                    self._gpu.free(self._address)
                    self._size = 0
                self._address = self._gpu.allocate(needed)
                self._size = needed
            if turn.staged.size < needed:
                turn.staged = self._gpu.staging(needed)
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        listed = turn.staged[aligned(size, 256) : needed]
        listed[:] = np.ascontiguousarray(cells, np.int32).view(np.uint8)
        self._gpu.upload(self._address + aligned(size, 256), listed)
        return turn

    def _move(self, cells: I32, first: int, room: int, is_write: bool) -> None:
        """Move cells between the storages and the device memory that `_begin` allocated."""
        listed = self._address + aligned(self.num_bytes(room), 256)
        at, launches = self._address, []
        for storage in self._storages:
            values = (listed, len(cells), first, room, at, int(is_write), *storage.fields)
            threads = len(cells) * storage.cell_bytes  # at least one for each part of each cell
            kernel = self._gpu.kernel(storage.program, "move_cells")
            argument = pack("PqqqPqPqqqq", values)
            launches.append(KernelLaunch(kernel, (-(-threads // 256), 1, 1), 256, 0, argument))
            at += room * storage.cell_bytes
        self._gpu.launch(launches)

    def _take(self, wait: Callable[[], None], staged: U8, block: U8, places: slice, room: int) -> None:
        """Copy the places that the device has filled to a block, and leave its other places as they are."""
        wait()
        if places == slice(0, room):
            block[:] = staged[: len(block)]
            return
        for own, part in zip(self._parts(block, room), self._parts(staged, room), strict=True):
            own[:, places] = part[:, places]

    def _parts(self, block: U8, room: int) -> Iterator[npt.NDArray[Any]]:
        """Yield each storage's part of a block: (heads, room, bytes)."""
        begin = 0
        for storage in self._storages:
            for width in storage.widths:
                end = begin + storage.heads * room * width
                yield block[begin:end].reshape(storage.heads, room, width)
                begin = end
