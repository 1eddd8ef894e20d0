"""A batch is uploaded as one copy of all its arrays, which a kernel takes to their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.arena import aligned
from chaski.ml.cuda.device import GPU, KernelLaunch, Program, pack
from chaski.ml.cuda.lowering import Staged

__all__ = ["Uploads"]

_ALIGNMENT = 256
_ENTRY = 3  # of the list in front: where an array begins, its words, and the address that it is taken to
_PROGRAM = Program("unpack")


class Uploads:
    """Places for arrays on the device, behind one another from `begin` on, and behind them for their copy.

    The sizes of dimensions are the first array. All elements have four bytes.
    """

    def __init__(self, staged: Sequence[Staged], dims: Sequence[str], begin: int) -> None:
        self._dims = dims
        self.sizes_at = begin
        end = begin + aligned(8 * len(dims), _ALIGNMENT)
        self.places: dict[Staged, int] = {}
        for each in staged:
            self.places[each] = end
            end += aligned(each.size, _ALIGNMENT)
        self._numbers = {each: index + 1 for index, each in enumerate(staged)}
        self._list_bytes = aligned(8 * _ENTRY * (len(staged) + 1), _ALIGNMENT)
        self._packed_at = end
        self.end = end + self._list_bytes + (end - begin)

    def take(self, gpu: GPU, address: int) -> None:
        """Take memory of the host. `address` is that of the device's memory, in which all places are."""
        self._gpu, self._address = gpu, address + self._packed_at
        self._memory = gpu.staging(self.end - self._packed_at)
        self._list = self._memory[: 8 * _ENTRY * (len(self.places) + 1)].view(np.int64).reshape(-1, _ENTRY)
        self._list[:] = 0
        self._list[:, 2] = [address + at for at in (self.sizes_at, *self.places.values())]
        words = self._memory[self._list_bytes :]
        self._words: Mapping[Any, npt.NDArray[Any]] = {
            np.dtype(dtype): words.view(dtype) for dtype in (np.int32, np.float32)
        }

    def send(self, arrays: Sequence[tuple[Staged, npt.NDArray[Any]]], sizes: Mapping[str, int]) -> None:
        """Copy sizes and arrays to the device, when those before are copied."""
        self._gpu.wait_uploads()
        counts = np.array([sizes[name] for name in self._dims], np.int64).view(np.int32)
        end = self._put(0, counts, 0)
        for staged, array in arrays:
            end = self._put(self._numbers[staged], array, end)
        self._gpu.upload(self._address, self._memory[: self._list_bytes + 4 * end])

    def _put(self, number: int, array: npt.NDArray[Any], at: int) -> int:
        """Put an array behind the others -> where the next one begins, in words."""
        self._words[array.dtype][at : at + array.size] = array.reshape(-1)
        self._list[number, :2] = self._list_bytes + 4 * at, array.size
        return at + array.size

    def launch(self) -> KernelLaunch:
        """The kernel that takes all arrays to their places."""
        argument = pack("P", (self._address,))
        kernel = self._gpu.kernel(_PROGRAM, "unpack")
        return KernelLaunch(kernel, (8, len(self.places) + 1, 1), 256, 0, argument)
