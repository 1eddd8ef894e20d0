"""The numeric rule of matrix products in NumPy, and random matrices to test it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chaski import _native
from chaski.formats.quant import QuantType

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FLOAT_TYPES = [QuantType.F32, QuantType.F16, QuantType.BF16]
QUANTIZED_TYPES = [t for t in map(QuantType, _native.matrix_types()) if t.block_size > 1]
SUPER_TYPES = [QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K]
TYPES = FLOAT_TYPES + QUANTIZED_TYPES


def widths(type: QuantType) -> list[int]:
    """Return k for one block and for several; whole blocks of 32 if the type requires it."""
    if type.block_size == 1:
        return [1, 2, 33, 300]
    return [type.block_size, 3 * type.block_size, 2048 // type.block_size * type.block_size + type.block_size]


def random_weights(type: QuantType, rows: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return random file bytes (rows, bytes of a row) with scales of similar size."""
    rng = np.random.default_rng([seed, int(type), rows, k])
    if type is QuantType.BF16:
        return (
            (rng.standard_normal((rows, k)).astype(np.float32).view(np.uint32) >> 16)
            .astype("<u2")
            .view(np.uint8)
        )
    if type.block_size == 1:
        return rng.standard_normal((rows, k)).astype(type.layout).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, k // type.block_size * type.block_bytes), np.uint8).view(type.layout)
    set_scales(blocks, type, lambda: rng.uniform(-0.05, 0.05, blocks.shape))
    if type is QuantType.MXFP4:
        blocks["e"] = rng.integers(118, 124, blocks.shape)
    if type is QuantType.NVFP4:
        blocks["d"] = rng.integers(24, 48, blocks["d"].shape)
    return blocks.view(np.uint8)


def set_scales(blocks: NDArray[np.void], type: QuantType, draw: Callable[[], float | Doubles]) -> None:
    """Write the half-precision numbers of blocks, each with a result of `draw`."""
    for name in ("d", "dmin", "m"):
        if name in (type.layout.names or ()) and type.layout[name] == np.float16:
            blocks[name] = draw()
    if type is QuantType.IQ1_M:  # a quarter of it in each of four words
        d = np.asarray(draw(), "<f2").view("<u2")[..., None]
        blocks["scales"] = blocks["scales"] & 0x0FFF | d >> np.arange(0, 16, 4, dtype="<u2") << 12


def pack(
    data: NDArray[np.uint8], type: QuantType, rows: int, k: int, isa: str = "auto"
) -> _native.PackedMatrix:
    return _native.pack_matrix(int(type), data.reshape(-1), rows, k, isa)


def activations(n: int, k: int, seed: int = 1) -> Floats:
    rng = np.random.default_rng([seed, n, k])
    return rng.standard_normal((n, k)).astype(np.float32) * rng.uniform(0.01, 4, (n, 1)).astype(np.float32)


def quantize(x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Apply the rule for activations in blocks: int8 values (n, blocks, 32) and scales (n, blocks)."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=-1)
    zero = amax < np.float32(1e-36)
    inverse = np.where(zero, np.float32(0), np.float32(127) / np.where(zero, np.float32(1), amax))
    scale = np.where(zero, np.float32(0), amax / np.float32(127))
    return np.rint(blocks * inverse[..., None]).astype(np.int64), scale


def quantize_super(x: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return super-blocks: values (n, k / 256, 8, 32), shifts (n, k / 256, 8), units (n, k / 256)."""
    supers = x.reshape(len(x), -1, 8, 32)
    values, shifts = np.zeros(supers.shape, np.int64), np.zeros(supers.shape[:3], np.int64)
    scales = np.zeros(supers.shape[:2], np.float32)
    for at in np.ndindex(*scales.shape):
        if np.abs(supers[at]).max() >= np.float32(1e-34):
            values[at], shifts[at], scales[at] = quantize_one_super(supers[at])
    return values, shifts, scales


def quantize_one_super(x: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], np.float32]:
    """Apply the rule for one super-block (8, 32) that is not all zero: values, shifts and the unit."""
    whole = np.abs(x).max() / np.float32(127)
    while True:
        values, shifts = np.zeros(x.shape, np.int64), np.zeros(8, np.int64)
        over = 0
        for b, block in enumerate(x):
            part = np.abs(block).max() * (np.float32(16) / (np.float32(127) * whole))
            shift = next((n for n in range(4) if part <= 2**n), 4)
            while True:
                values[b] = np.rint(block * (np.float32(1) / whole * np.float32(2 ** (4 - shift))))
                shifts[b] = shift
                over = int(np.abs(values[b]).reshape(2, 16).sum(axis=-1).max())
                if over <= 1023 or shift == 4:
                    break
                shift += 1
            if over > 1023:
                break
        if over <= 1023:
            return values, shifts, whole / np.float32(16)
        whole *= np.float32(over) / np.float32(1007)


def rounded(x: Floats, in_super_blocks: bool = False) -> NDArray[np.float64]:
    """Return the rounded activations of quantized kernels for x."""
    if in_super_blocks:
        values, shifts, scales = quantize_super(x)
        wide = (values << shifts[..., None]) * scales.astype(np.float64)[..., None, None]
        return wide.reshape(x.shape)
    values, scale = quantize(x)
    return (values * scale.astype(np.float64)[..., None]).reshape(x.shape)


def rounded_to_bf16(x: Floats) -> Floats:
    """Round x to bf16, to nearest, ties to even, as products with BF16 do."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def seen(type: QuantType, x: Floats, in_super_blocks: bool = False) -> NDArray[np.float64]:
    """Return the rounded activations for x in products with weights of a type."""
    if type is QuantType.BF16:
        return rounded_to_bf16(x).astype(np.float64)
    if type in FLOAT_TYPES:
        return x.astype(np.float64)
    return rounded(x, in_super_blocks or type in SUPER_TYPES)


def assert_close(y: Floats, x: NDArray[np.float64], w: Floats) -> None:
    """Check y = x times w transposed, within 1e-6 of the sum of the products' magnitudes."""
    exact = x @ w.astype(np.float64).T
    size = np.abs(x) @ np.abs(w.astype(np.float64)).T
    assert np.all(np.abs(y - exact) <= 1e-6 * size + 1e-30)


def to_float32(value: Fraction) -> np.float32:
    """Return the nearest float32 by exact comparison; for ties, the one whose last bit is zero."""
    near = np.float32(float(value))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return to_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
