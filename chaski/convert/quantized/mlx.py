"""MLX (Apple): integers or small floats of groups of a row, in words of 32 bits.

A weight has `weight` (…, rows, words), `scales` (…, rows, groups) and in the mode `affine` also `biases`: an
element is code * scale + bias. The settings are `quantization` in config.json, which may have others for
single modules. A layer's experts are stacked as `switch_mlp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from chaski.convert.config import Config
from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import (
    FLOATS_OF_8,
    Blocks,
    at,
    fp4_of,
    scaled,
    unfitting,
    unpacked,
    words,
)
from chaski.convert.quantized.module import Decoded, Stored
from chaski.errors import UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_mlx"]

# The size of groups and the bits of elements, where they are fixed.
_FLOATS = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
_MOST_BITS = 8
_EXPERTS = ".switch_mlp."


def decode_mlx(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that MLX packed, and each expert's apart. Raises UnsupportedError and ModelError."""
    for scales_name, scales in stored.ending(".scales"):
        base = scales_name.removesuffix("scales")
        packed = stored.require(f"{base}weight", scales_name)
        settings = _settings(stored.settings, packed.name.removesuffix(".weight"))
        mode = settings.get("mode", str, "affine")
        if mode != "affine" and mode not in _FLOATS:
            known = ", ".join(["affine", *_FLOATS])
            raise UnsupportedError(
                f"{settings.path}: MLX's mode {mode!r:.80} is not known; known are {known}"
            )
        size, bits = _FLOATS.get(mode) or (settings.count("group_size", 64), settings.count("bits", 4))
        shape = *packed.shape[:-1], scales.shape[-1] * size
        if bits > _MOST_BITS or packed.shape[-1] * 32 != shape[-1] * bits:
            raise unfitting(packed, shape)
        if mode == "affine":
            decode = _integers(packed, scales, stored.require(f"{base}biases", scales_name), shape, bits)
        else:
            decode = _floats(packed, scales, shape, mode)
        yield from _weights(stored, base, shape, decode)


def _settings(settings: Config, module: str) -> Config:
    own = settings.values.get(module)
    return Config(settings.path, {**settings.values, **own}) if isinstance(own, dict) else settings


def _integers(
    packed: SafeTensor, scales: SafeTensor, biases: SafeTensor, shape: tuple[int, ...], bits: int
) -> DecodeRows:
    codes, positions = words(packed), indices(shape[-1])
    of_scales, of_biases = Blocks.of(scales, shape), Blocks.of(biases, shape)

    def decode(rows: Rows) -> F32:
        integers = unpacked(at(codes, rows), positions, bits).astype(np.float32)
        values: F32 = scaled(integers, rows, of_scales) + of_biases.at(rows)
        return values

    return decode


def _floats(packed: SafeTensor, scales: SafeTensor, shape: tuple[int, ...], mode: str) -> DecodeRows:
    codes = words(packed).view(np.uint8)
    blocks = Blocks.of(replace(scales, dtype="F8_E4M3") if mode == "nvfp4" else scales, shape)

    def decode(rows: Rows) -> F32:
        pieces = at(codes, rows)
        return scaled(FLOATS_OF_8["F8_E4M3"][pieces] if mode == "mxfp8" else fp4_of(pieces), rows, blocks)

    return decode


def _weights(stored: Stored, base: str, shape: tuple[int, ...], decode: DecodeRows) -> Iterator[Decoded]:
    """Yield a weight under its name, or those of a stack of experts under the names of Hugging Face."""
    parts = f"{base}weight", f"{base}scales", f"{base}biases"
    if _EXPERTS not in base or len(shape) != 3:
        yield stored.decoded(parts[0], shape, decode, *parts)
        return
    before, after = base.split(_EXPERTS)
    for expert in range(shape[0]):
        first = expert * shape[1]

        def of_expert(rows: Rows, first: int = first) -> F32:
            return decode(rows + first)

        name = f"{before}.experts.{expert}.{after}weight"
        yield stored.decoded(name, shape[1:], of_expert, *parts)
