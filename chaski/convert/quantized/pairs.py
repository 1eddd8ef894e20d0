"""Elements in FP4 (E2M1), two in a byte, with scales of groups of 16 or 32 elements of a row.

The first element is in the low half of its byte. The layouts differ in names and scales:

* `weight_packed`, `weight_scale` and, for NVFP4, `weight_global_scale`, which divides: compressed-tensors.
* `weight`, `weight_scale` and, for NVFP4, `weight_scale_2`, which multiplies: ModelOpt and Quark.
* `weight` of int8 with `scale` in E8M0: the experts of DeepSeek V4.
* `NAME_blocks` (…, rows, groups, 16) and `NAME_scales`: MXFP4 as gpt-oss has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, decoded_tensor
from chaski.convert.quantized.elements import Blocks, at, fp4_of, scaled
from chaski.convert.quantized.module import Decoded, Stored
from chaski.convert.quantized.scaled import scale_name
from chaski.errors import ModelError
from chaski.formats.quant import Bytes
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_blocks", "decode_pairs"]

_PACKED = ".weight_packed"


def decode_pairs(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in FP4 whose scales are a tensor (…, rows, groups). Raises ModelError."""
    for main, packed in stored.tensors.items():
        name = main.removesuffix("_packed") if main.endswith(_PACKED) else main
        scale = scale_name(stored, name)
        if scale is None or not _holds_pairs(packed, stored.tensors[scale]):
            continue
        shape = *packed.shape[:-1], 2 * packed.shape[-1]
        divisor, factor = f"{name}_global_scale", f"{name}_scale_2"
        decode = _values(stored, packed, scale, divisor, factor, shape)
        yield stored.decoded(name, shape, decode, main, scale, divisor, factor)


def _holds_pairs(packed: SafeTensor, scale: SafeTensor) -> bool:
    return len(packed.shape) > 1 and (
        packed.dtype == "U8" or (packed.dtype == "I8" and scale.dtype == "F8_E8M0")
    )


def _values(
    stored: Stored, packed: SafeTensor, scale: str, divisor: str, factor: str, shape: tuple[int, ...]
) -> DecodeRows:
    scales = Blocks.of(stored.tensors[scale], shape, factor=stored.get(factor), divisor=stored.get(divisor))

    def decode(rows: Rows) -> F32:
        return scaled(fp4_of(at(packed.data.view("u1"), rows)), rows, scales)

    return decode


def decode_blocks(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in blocks of MXFP4. Those of experts get the order of transformers, (…, in, out).

    Raises ModelError for blocks without scales, or of another shape.
    """
    for name, blocks in stored.ending("_blocks"):
        base = name.removesuffix("_blocks")
        scales = stored.require(f"{base}_scales", name)
        if blocks.dtype != "U8" or len(blocks.shape) < 3 or blocks.shape[:-1] != scales.shape:
            raise ModelError(
                f"{blocks.path}: tensor {name!r} {blocks.dtype} {blocks.shape} is not blocks of MXFP4 for "
                f"scales of shape {scales.shape}"
            )
        *matrices, num_rows, groups, size = blocks.shape
        shape = (*matrices, num_rows, 2 * groups * size)
        pairs = blocks.data.reshape(*matrices, num_rows, groups * size)
        grid = Blocks.of(scales, shape)

        def decode(rows: Rows, pairs: Bytes = pairs, grid: Blocks = grid) -> F32:
            return scaled(fp4_of(at(pairs, rows)), rows, grid)

        tensor = decoded_tensor(base, blocks, shape, decode)
        if matrices:
            tensor = replace(tensor, shape=(*matrices, *shape[:-3:-1]), data=tensor.data.swapaxes(-1, -2))
        yield Decoded(tensor, (name, f"{base}_scales"))
