"""The block formats of GGUF tensors and their layouts.

Every row of a tensor is a whole number of blocks. A block stores `block_size` elements in `block_bytes`
bytes, little-endian.
Layouts: the ggml library, https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chaski.errors import FormatError

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
BlockFields: TypeAlias = NDArray[np.integer[Any]]  # small whole numbers, uint8 at run time
PackedBlocks: TypeAlias = NDArray[np.void]  # one record of the type's layout per block


class QuantType(IntEnum):
    """The storage types of elements; the values are the type numbers of GGUF files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42
    # Ollama's first gpt-oss files have MXFP4 as OpenAI's checkpoint has it, under a number that ggml had
    # given up: byte j of a block holds elements 2 j and 2 j + 1, where MXFP4 has j and j + 16.
    MXFP4_INTERLEAVED = 4
    # Three bits, only for keys and values in memory. ggml has no such type, and no file has the number.
    Q3_0 = 100

    @property
    def block_size(self) -> int:
        """Elements in a block; 1 for plain numbers."""
        return _LAYOUTS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _LAYOUTS[self][1].itemsize

    @property
    def layout(self) -> np.dtype[Any]:
        """The block as a NumPy data type: a number, or a record with ggml's field names."""
        return _LAYOUTS[self][1]


# Types of ggml that no file has: activations are stored so while they are computed with.
UNSUPPORTED_TYPES = {9: "Q8_1", 15: "Q8_K"}
FILE_TYPES = frozenset(QuantType) - {QuantType.Q3_0}
"""Types that files have."""
REMOVED_TYPES = {
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_LAYOUTS: dict[QuantType, tuple[int, np.dtype[Any]]] = {
    QuantType.F32: (1, np.dtype("<f4")),
    QuantType.F16: (1, np.dtype("<f2")),
    QuantType.BF16: (1, np.dtype("<u2")),
    QuantType.F64: (1, np.dtype("<f8")),
    QuantType.I8: (1, np.dtype("i1")),
    QuantType.I16: (1, np.dtype("<i2")),
    QuantType.I32: (1, np.dtype("<i4")),
    QuantType.I64: (1, np.dtype("<i8")),
    QuantType.Q3_0: (32, np.dtype([("d", "<f2"), ("bits", "<u4", 3)])),
    QuantType.Q4_0: (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.Q4_1: (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])),
    QuantType.Q5_0: (32, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    QuantType.Q5_1: (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    QuantType.Q8_0: (32, np.dtype([("d", "<f2"), ("qs", "i1", 32)])),
    QuantType.Q2_K: (256, np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])),
    QuantType.Q3_K: (
        256,
        np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]),
    ),
    QuantType.Q4_K: (256, np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])),
    QuantType.Q5_K: (
        256,
        np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]),
    ),
    QuantType.Q6_K: (
        256,
        np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
    ),
    QuantType.IQ4_NL: (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.IQ4_XS: (
        256,
        np.dtype([("d", "<f2"), ("scales_h", "u1", 2), ("scales_l", "u1", 4), ("qs", "u1", 128)]),
    ),
    QuantType.MXFP4: (32, np.dtype([("e", "u1"), ("qs", "u1", 16)])),
    QuantType.MXFP4_INTERLEAVED: (32, np.dtype([("e", "u1"), ("qs", "u1", 16)])),
    QuantType.NVFP4: (64, np.dtype([("d", "u1", 4), ("qs", "u1", 32)])),
    QuantType.Q1_0: (128, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.Q2_0: (64, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.TQ1_0: (256, np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])),
    QuantType.TQ2_0: (256, np.dtype([("qs", "u1", 64), ("d", "<f2")])),
    QuantType.IQ1_S: (256, np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])),
    QuantType.IQ1_M: (256, np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])),
    QuantType.IQ2_XXS: (256, np.dtype([("d", "<f2"), ("qs", "u1", 64)])),
    QuantType.IQ2_XS: (256, np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])),
    QuantType.IQ2_S: (
        256,
        np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]),
    ),
    QuantType.IQ3_XXS: (256, np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])),
    QuantType.IQ3_S: (
        256,
        np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]),
    ),
}


def row_bytes(type: QuantType, n: int) -> int:
    """Return the bytes of a row of `n` elements; FormatError when that is not a whole number of blocks."""
    if n % type.block_size:
        raise FormatError(f"a row of {n} elements is not whole {type.name} blocks of {type.block_size}")
    return n // type.block_size * type.block_bytes


def as_float32(values: NDArray[Any]) -> Floats:
    """Return numbers as contiguous float32; uint16 numbers are the bits of BF16. Exact but for float64."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(values, np.float32)
