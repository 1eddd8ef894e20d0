"""Fields of a few bits put together into bytes; `dequantize.py` has the inverses."""

from __future__ import annotations

import numpy as np

from chaski.formats.quant import BlockFields, Bytes

__all__ = ["pack"]


def pack(fields: BlockFields, bits: int, run: int) -> Bytes:
    """Put fields of `bits` bits together; the inverse of `dequantize.unpack`."""
    per_byte = 8 // bits
    runs = np.ascontiguousarray(fields).reshape(len(fields), -1, per_byte, run)
    if run % 8 == 0:  # eight bytes at once, which no field leaves
        runs = runs.view(np.uint64)
    packed = runs[:, :, 0].copy()
    for i in range(1, per_byte):
        packed |= runs[:, :, i] << runs.dtype.type(bits * i)
    return packed.view(np.uint8).reshape(len(fields), -1)
