"""Elements of eight bits, FP8 or int8, with scales of the tensor, of its rows, or of blocks or groups.

The value of an element is (element - zero point) * scale. The scales have many names:

* `NAME_scale_inv`: DeepSeek V3, Qwen 3 and other models in FP8.
* `NAME_scale`: compressed-tensors, FBGEMM, ModelOpt and Quark.
* `MODULE.scale` for `MODULE.weight`: DeepSeek V4.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows
from chaski.convert.quantized.elements import Blocks, at, numbers, scaled
from chaski.convert.quantized.module import Decoded, Stored
from chaski.formats.safetensors import SafeTensor

__all__ = ["SCALES", "block_sizes", "decode_scaled", "scale_name"]

SCALES = ("_scale_inv", "_scale")
_STORED = ("F8_E4M3", "F8_E5M2", "I8")


def scale_name(stored: Stored, name: str) -> str | None:
    """Return the name of the scales of tensor `name`, if it has some."""
    names = [f"{name}{suffix}" for suffix in SCALES]
    if name.endswith(".weight"):
        names.append(f"{name.removesuffix('weight')}scale")
    return next((each for each in names if each in stored.tensors), None)


def block_sizes(stored: Stored) -> tuple[int, ...]:
    """Return the rows and columns of a block with one scale, or () if the settings do not contain them."""
    sizes = stored.settings.list("weight_block_size", int)
    groups = stored.settings.part("config_groups")
    for name in groups.values:
        group = groups.part(name) if isinstance(groups.values[name], dict) else None
        sizes = sizes or ([] if group is None else group.part("weights").list("block_structure", int))
    return tuple(sizes)


def decode_scaled(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights whose elements are stored as FP8 or int8. Raises ModelError for unfitting scales."""
    sizes = block_sizes(stored)
    for name, weight in stored.tensors.items():
        scale = scale_name(stored, name)
        if weight.dtype not in _STORED or scale is None or len(weight.shape) < 2:
            continue
        if weight.dtype == "I8" and stored.tensors[scale].dtype == "F8_E8M0":
            continue  # pairs of FP4
        yield stored.decoded(
            name, weight.shape, _values(stored, weight, name, scale, sizes), name, scale, f"{name}_zero_point"
        )


def _values(stored: Stored, weight: SafeTensor, name: str, scale: str, sizes: tuple[int, ...]) -> DecodeRows:
    stored_scale, zero = stored.tensors[scale], stored.get(f"{name}_zero_point")
    scales = Blocks.of(stored_scale, weight.shape, sizes)
    zeros = None if zero is None else Blocks.of(zero, weight.shape, sizes)

    def decode(rows: Rows) -> F32:
        return scaled(numbers(weight, at(weight.data, rows)), rows, scales, zeros)

    return decode
