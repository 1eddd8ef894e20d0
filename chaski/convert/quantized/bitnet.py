"""BitNet b1.58: elements -1, 0 and 1, four rows in a byte, with a scale of the tensor.

A byte of packed row p contains, from its lowest bits, rows p, p + n, p + 2n and p + 3n of the weight, for n
packed rows. `linear_class` says what the scale means: `autobitlinear` multiplies, `bitlinear` divides.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows
from chaski.convert.quantized.elements import numbers, unfitting
from chaski.convert.quantized.module import Decoded, Stored
from chaski.errors import UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_bitnet"]

_ROWS = 4


def decode_bitnet(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights of three values. Raises UnsupportedError, and ModelError for unfitting scales."""
    settings = stored.settings
    if settings.get("quantization_mode", str, "offline") != "offline":
        raise UnsupportedError(
            f"{settings.path}: the model rounds its weights while it runs ('quantization_mode'); convert the "
            "checkpoint whose weights are packed"
        )
    multiplies = settings.get("linear_class", str, "bitlinear") == "autobitlinear"
    for name, packed in stored.ending(".weight"):
        if packed.dtype != "U8" or len(packed.shape) != 2:
            continue
        scale = stored.require(f"{name}_scale", name)
        shape = _ROWS * packed.shape[0], packed.shape[1]
        if scale.data.size != 1:
            raise unfitting(scale, shape)
        yield stored.decoded(name, shape, _rows(packed, scale, multiplies), name, f"{name}_scale")


def _rows(packed: SafeTensor, scale: SafeTensor, multiplies: bool) -> DecodeRows:
    def decode(rows: Rows) -> F32:
        place, row = np.divmod(rows, packed.shape[0])
        codes = packed.data[row] >> (2 * place[:, None]).astype(np.uint8) & 3
        values = codes.astype(np.float32) - 1
        factor = numbers(scale).reshape(())
        return values * factor if multiplies else values / factor

    return decode
