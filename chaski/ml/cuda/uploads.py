"""Upload of a batch: one copy of all its arrays, which a kernel then distributes to their places.

Elements that an earlier run computed are already on the device, and the kernel reads them there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import numpy.typing as npt

from chaski.ml.arena import aligned
from chaski.ml.cuda.device import GPU, KernelLaunch, Program, pack
from chaski.ml.cuda.lowering import Staged

__all__ = ["Uploads"]

_ALIGNMENT = 256
# An entry of the leading list has four numbers: where an array begins, its number of words, its target
# address, and the address of a result that some of the words are read from, or 0.
_ENTRY = 4
_PROGRAM = Program("unpack")


class Uploads:
    """Places for arrays on the device, consecutive from `begin` on, followed by a place for their copy.

    The first array contains the sizes of dimensions. All other elements have four bytes.
    """

    def __init__(self, staged: Sequence[Staged], dims: Sequence[str], begin: int) -> None:
        self._dims = dims
        self.sizes_at = begin
        end = begin + aligned(8 * len(dims), _ALIGNMENT)
        self.places: dict[Staged, int] = {}
        for each in staged:
            self.places[each] = end
            end += aligned(each.size, _ALIGNMENT)
        self._counts = Struct(f"{len(dims)}q")
        self._list = Struct(f"{_ENTRY * (len(staged) + 1)}q")
        self._list_bytes = aligned(self._list.size, _ALIGNMENT)
        self._packed_at = end
        self.end = end + self._list_bytes + (end - begin)

    def take(self, gpu: GPU, address: int) -> None:
        """Allocate host memory. `address`: the start of the device memory that contains all places."""
        self._gpu, self._address = gpu, address + self._packed_at
        self._memory = gpu.staging(self.end - self._packed_at)
        self._bytes = self._memory.data
        self._targets = [address + at for at in (self.sizes_at, *self.places.values())]

    def send(
        self, arrays: Sequence[npt.NDArray[Any]], sizes: Mapping[str, int], sources: Mapping[int, int]
    ) -> None:
        """Copy the sizes and all arrays, in order, to the device, once the previous copy is complete.

        sources: the address of floats on the device for an array's number. An element -1 - i of that array
        stands for the i-th of these floats, as an integer.
        """
        parts = [self._counts.pack(*[sizes[name] for name in self._dims])]
        parts += [array.tobytes() for array in arrays]
        end = self._list_bytes
        entries: list[int] = []
        for part, target in zip(parts, self._targets, strict=True):
            size = len(part)
            entries += end, size // 4, target, 0
            end += size
        for number, source in sources.items():
            entries[_ENTRY * (number + 2) - 1] = source  # entry 0 is for the sizes
        self._gpu.wait_uploads()
        self._list.pack_into(self._bytes, 0, *entries)
        self._bytes[self._list_bytes : end] = b"".join(parts)
        self._gpu.upload(self._address, self._memory[:end])

    def launch(self) -> KernelLaunch:
        """Return the kernel that copies all arrays to their places."""
        argument = pack("P", (self._address,))
        kernel = self._gpu.kernel(_PROGRAM, "unpack")
        return KernelLaunch(kernel, (8, len(self.places) + 1, 1), 256, 0, argument)
