"""bitsandbytes: NF4 and FP4 in blocks of a weight's elements in order, and int8 with a scale for each row.

A weight of four bits has two elements in a byte, the first in the high half. `quant_map` contains the values
of the sixteen codes, `absmax` the scale of each block; `quant_state` is JSON with the weight's shape. The
scales may be bytes themselves, with a `nested_quant_map`, scales of blocks and an offset.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from chaski.convert.config import Config
from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import at, numbers
from chaski.convert.quantized.module import Decoded, Stored
from chaski.errors import ModelError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_int8", "decode_nf4"]

_STATE = re.compile(r"(?P<name>.+)\.quant_state\.bitsandbytes__(?:nf4|fp4)")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_MOST_VALUES = 100
_ONE_127TH = np.float32(1 / 127)


def decode_int8(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in int8. Raises ModelError for scales that do not fit."""
    for scale_name, scale in stored.ending(".SCB"):
        base = scale_name.removesuffix("SCB")
        weight = stored.require(f"{base}weight", scale_name)
        if weight.dtype != "I8" or weight.shape[:1] != scale.shape or len(weight.shape) != 2:
            raise _unfitting(weight, f"the scales {scale.name!r} {scale.shape}")
        scales = numbers(scale)

        def decode(rows: Rows, weight: SafeTensor = weight, scales: F32 = scales) -> F32:
            return numbers(weight, at(weight.data, rows)) * scales[rows, None] * _ONE_127TH

        parts = f"{base}weight", scale_name, f"{base}weight_format"
        yield stored.decoded(parts[0], weight.shape, decode, *parts)


def decode_nf4(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in NF4 and FP4. Raises ModelError for parts that do not fit together."""
    for state_name, state in stored.tensors.items():
        match = _STATE.fullmatch(state_name)
        if match is None:
            continue
        name = match["name"]
        weight, settings = stored.require(name, state_name), _settings(state)
        shape = tuple(settings.list("shape", int))
        size = settings.count("blocksize")
        if len(shape) < 2 or min(shape) < 1 or weight.data.nbytes != -(-math.prod(shape) // 2):
            raise _unfitting(weight, f"the shape {shape}")
        codes = numbers(stored.require(f"{name}.quant_map", state_name)).reshape(-1)
        scales = _Scales.of(stored, name, state_name, settings)
        if len(codes) != 16 or scales.stored.data.size != -(-math.prod(shape) // size):
            raise _unfitting(weight, f"{scales.stored.shape} scales of blocks of {size}, {len(codes)} codes")
        decode = _nf4_rows(weight, shape[-1], codes, scales, size)
        parts = (f"{name}.{part}" for part in _PARTS)
        yield stored.decoded(name, shape, decode, name, state_name, *parts)


def _settings(state: SafeTensor) -> Config:
    """Return what a tensor of JSON says."""
    try:
        value = load_json(state.data.tobytes(), _MOST_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise ModelError(f"{state.path}: tensor {state.name!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{state.path}: tensor {state.name!r} is not a JSON object")
    return Config(state.path, value)


class _Scales(Struct, frozen=True):
    """The scales of successive blocks. Nested ones are codes: `size` of them share an outer scale."""

    stored: SafeTensor
    codes: F32 | None = None
    outer: F32 | None = None
    size: int = 1
    offset: float = 0.0

    @classmethod
    def of(cls, stored: Stored, name: str, state_name: str, settings: Config) -> _Scales:
        scales = stored.require(f"{name}.absmax", state_name)
        if "nested_blocksize" not in settings:
            return cls(scales)
        outer = numbers(stored.require(f"{name}.nested_absmax", state_name)).reshape(-1)
        codes = numbers(stored.require(f"{name}.nested_quant_map", state_name)).reshape(-1)
        size = settings.count("nested_blocksize")
        if scales.dtype != "U8" or len(codes) != 256 or -(-scales.data.size // size) != len(outer):
            raise _unfitting(scales, f"{len(outer)} scales and {len(codes)} codes")
        return cls(scales, codes, outer, size, settings.get("nested_offset", float))

    def between(self, begin: int, end: int) -> F32:
        """Return the scales of the blocks from `begin` to `end`."""
        values = self.stored.data.reshape(-1)[begin:end]
        if self.codes is None or self.outer is None:
            return numbers(self.stored, values)
        outer = self.outer[np.arange(begin, end) // self.size]
        found: F32 = self.codes[values] * outer + np.float32(self.offset)
        return found


def _nf4_rows(weight: SafeTensor, num_columns: int, codes: F32, scales: _Scales, size: int) -> DecodeRows:
    packed = weight.data.reshape(-1).view("u1")

    def decode(rows: Rows) -> F32:
        elements = rows[:, None] * num_columns + indices(num_columns)
        blocks = elements // size
        first = int(blocks.min())
        pairs = packed[elements >> 1]
        of_blocks = scales.between(first, int(blocks.max()) + 1)
        values: F32 = codes[np.where(elements & 1, pairs & 15, pairs >> 4)] * of_blocks[blocks - first]
        return values

    return decode


def _unfitting(tensor: SafeTensor, what: str) -> ModelError:
    return ModelError(f"{tensor.path}: tensor {tensor.name!r} {tensor.shape} does not fit {what}")
