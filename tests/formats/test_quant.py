"""Block formats: sizes and values equal to the gguf package, bit for bit, for any bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as dequantize_gguf

from chaski.errors import FormatError
from chaski.formats.dequantize import dequantize, unpack, unpack_scales_6bit
from chaski.formats.quant import FILE_TYPES, REMOVED_TYPES, UNSUPPORTED_TYPES, QuantType, row_bytes

BLOCKS = Path(__file__).parent.parent / "data" / "blocks.npz"  # by tools/fixtures/make_blocks.py
PLAIN = {
    QuantType.F32: "<f4",
    QuantType.F16: "<f2",
    QuantType.F64: "<f8",
    QuantType.I8: "i1",
    QuantType.I16: "<i2",
    QuantType.I32: "<i4",
    QuantType.I64: "<i8",
}
PACKED = sorted(FILE_TYPES - PLAIN.keys())
OF_GGML = [type for type in QuantType if int(type) in map(int, GGMLQuantizationType)]  # gguf lags behind


def random_bytes(type: QuantType, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(int(type))
    return rng.integers(0, 256, (rows, blocks * type.block_bytes), np.uint8)


def test_every_ggml_type_is_known() -> None:
    ours = {int(type): type.name for type in QuantType} | UNSUPPORTED_TYPES
    assert ours.items() >= {int(type): type.name for type in GGMLQuantizationType}.items()
    assert not ours.keys() & REMOVED_TYPES.keys()


@pytest.mark.parametrize("type", OF_GGML)
def test_sizes(type: QuantType) -> None:
    assert (type.block_size, type.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType(int(type))]
    assert row_bytes(type, 6 * type.block_size) == 6 * type.block_bytes


@pytest.mark.parametrize("type", [type for type in PACKED if type in OF_GGML and type is not QuantType.Q1_0])
def test_dequantize_equals_gguf(type: QuantType) -> None:
    """Random bytes reach every level, scale and sign, including infinities and NaNs."""
    data = random_bytes(type, 11, 301)
    found = dequantize(data, type, (11, 301 * type.block_size))
    with np.errstate(all="ignore"):
        wanted = dequantize_gguf(data, GGMLQuantizationType(int(type)))
    assert found.dtype == np.float32
    same_bits = found.view(np.uint32) == wanted.view(np.uint32)
    assert np.all(same_bits | (np.isnan(found) & np.isnan(wanted)))
    assert np.isfinite(found).mean() > 0.8


def test_neighbours_of_interleaved_mxfp4_share_a_byte() -> None:
    codes = np.arange(32, dtype=np.uint8) % 16
    block = np.concatenate([[127], codes[::2] | codes[1::2] << 4]).astype(np.uint8)
    ggml = np.concatenate([[127], codes[:16] | codes[16:] << 4]).astype(np.uint8)
    np.testing.assert_array_equal(
        dequantize(block, QuantType.MXFP4_INTERLEAVED, (32,)), dequantize(ggml, QuantType.MXFP4, (32,))
    )


def test_blocks_by_llama_cpp() -> None:
    """llama.cpp quantized the same weights as each low-bit type, and read these values again."""
    with np.load(BLOCKS) as file:
        stored = dict(file)
    weights = stored.pop("weights")
    names = {name.partition(".")[0] for name in stored}
    assert len(names) == 12
    for name in names:
        values = dequantize(stored[f"{name}.blocks"], QuantType[name], weights.shape)
        np.testing.assert_array_equal(values.view(np.uint32), stored[f"{name}.values"].view(np.uint32))
        assert np.corrcoef(values, weights)[0, 1] > 0.6


@pytest.mark.parametrize(("type", "dtype"), PLAIN.items())
def test_dequantize_plain_numbers(type: QuantType, dtype: str) -> None:
    values = np.array([[0, 1, -2], [127, -128, 3]], dtype)
    found = dequantize(values.view(np.uint8), type, (2, 3))
    np.testing.assert_array_equal(found, values.astype(np.float32))
    assert found.dtype == np.float32


@pytest.mark.parametrize("type", sorted(FILE_TYPES))
def test_rows_are_independent(type: QuantType) -> None:
    """A tensor that needs several steps gives the same values as its rows, also in three dimensions."""
    columns = 8 * type.block_size
    rows = 2 + (1 << 18) // columns
    data = random_bytes(type, rows, 8)
    whole = dequantize(data.reshape(-1), type, (2, rows // 2, columns)) if rows % 2 == 0 else None
    whole = dequantize(data.reshape(-1), type, (1, rows, columns)) if whole is None else whole
    for row in (0, rows // 2, rows - 1):
        alone = dequantize(data[row], type, (columns,))
        np.testing.assert_array_equal(whole.reshape(rows, columns)[row], alone)


def test_bytes_that_do_not_fit() -> None:
    with pytest.raises(FormatError, match="a row of 48 elements is not whole Q4_0 blocks of 32"):
        row_bytes(QuantType.Q4_0, 48)
    with pytest.raises(FormatError, match=r"a Q8_0 tensor of shape \(2, 32\) takes 68 bytes, not 34"):
        dequantize(np.zeros(34, np.uint8), QuantType.Q8_0, (2, 32))


def test_unpack() -> None:
    packed = np.array([[0x21, 0x43, 0x65, 0x87]], np.uint8)
    assert unpack(packed, 4, 2).tolist() == [[1, 3, 2, 4, 5, 7, 6, 8]]
    assert unpack(packed, 4, 1).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert unpack(packed[:, :1], 2, 1).tolist() == [[1, 0, 2, 0]]


def test_unpack_scales_6bit() -> None:
    """The highest and lowest bits of each number are at the places that the format defines."""
    packed = np.zeros((1, 12), np.uint8)
    packed[0, 0] = 0b11_000001  # scale 0 is 1; scale 4 has its upper two bits here
    packed[0, 7] = 0b10_100000  # minimum 3 is 32; minimum 7 has its highest bit here
    packed[0, 8] = 0b0000_0001  # scale 4 has its lowest bit here
    packed[0, 11] = 0b1000_0000
    scales, minimums = unpack_scales_6bit(packed)
    assert scales.tolist() == [[1, 0, 0, 0, 49, 0, 0, 0]]
    assert minimums.tolist() == [[0, 0, 0, 32, 0, 0, 0, 40]]
