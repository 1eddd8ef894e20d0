"""Values that travel as int8, since all that read them round them to that first, by the rule of numbers.

The rule is that of `native/include/matmul.h`. What arrives are not the numbers that were sent, but such as
are rounded to the same int8 and the same scales; whoever sends a row makes sure of it, or sends its floats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski import _native
from chaski.errors import ClusterError
from chaski.ml.rounding import SUPER_BLOCK

__all__ = ["RoundedRows", "rounded_bytes"]

F32 = npt.NDArray[np.float32]

_AMAX, _SHIFTS = 4, 4


class RoundedRows(Struct, frozen=True):
    """Rows (rows, width) in blocks of 32 or super-blocks of 256: what they are rounded to, as bytes."""

    rows: int
    width: int
    block: int
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, values: F32, block: int) -> RoundedRows:
        """Round rows (n, width), whose width is a multiple of `block`."""
        rows, width = values.shape
        data = _native.rounded_rows(np.ascontiguousarray(values), block == SUPER_BLOCK)
        return cls(rows, width, block, data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def floats(self) -> F32:
        """Return rows that are rounded alike. Raises ClusterError where the bytes are none of such rows."""
        try:
            return _native.unrounded_rows(self.data, self.rows, self.width, self.block == SUPER_BLOCK)
        except ValueError as error:
            raise ClusterError(str(error)) from None


def rounded_bytes(rows: int, width: int, block: int) -> int:
    """The bytes of rows that are rounded again as they were, all of them."""
    each = block + _AMAX + (_SHIFTS if block == SUPER_BLOCK else 0)
    return rows * (1 + width // block * each)
