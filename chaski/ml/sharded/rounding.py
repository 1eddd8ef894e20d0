"""Values that are sent between nodes as int8, because all readers round them to int8 first.

The rule is that of `native/include/matmul.h`; `chaski.ml.rounding` finds the values. The received numbers
differ from the original ones, but round to the same int8 and the same scales. The sender checks that for each
row, and sends the row's floats if the check fails.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski import _native
from chaski.errors import ClusterError
from chaski.ml.rounding import SUPER_BLOCK

__all__ = ["RoundedRows"]

F32 = npt.NDArray[np.float32]


class RoundedRows(Struct, frozen=True):
    """Rows (rows, width), rounded in blocks of 32 or super-blocks of 256, as bytes."""

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
        """Return rows that round to the same int8. Raises ClusterError for bytes that are not such rows."""
        try:
            return _native.unrounded_rows(self.data, self.rows, self.width, self.block == SUPER_BLOCK)
        except ValueError as error:
            raise ClusterError(str(error)) from None
