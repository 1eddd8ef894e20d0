"""The definition of LoRA adapters, number by number, following the rule in `native/include/lora.h`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from chaski.errors import AdapterError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf_tensors import TensorInfo
from chaski.ml.backend import HOST, ByDevice, LoraMatrices

__all__ = ["ReferenceAdapterSlots", "adapt"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

_SUMS = 4


class ReferenceAdapterSlots:
    """`AdapterSlots` with A and B in float32 and the scale, by slot and matrix."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], tuple[F32, F32, np.float32]] = {}

    @property
    def ready_bytes(self) -> ByDevice:
        return {}

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        return {HOST: sum(4 * int(np.prod(x.shape)) for pair in pairs.values() for x in (pair.a, pair.b))}

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        self.clear(slot)
        for matrix, (a, b, scale) in pairs.items():
            self.pairs[slot, matrix] = _values(a), _values(b), np.float32(scale)

    def clear(self, slot: int) -> None:
        self.pairs = {key: pair for key, pair in self.pairs.items() if key[0] != slot}


def _values(info: TensorInfo) -> F32:
    values = dequantize(info.data, info.type, info.shape)
    if not np.isfinite(values).all():
        raise AdapterError(
            f"{info.path}: tensor {info.name} has values that are not finite numbers; training or conversion "
            "of the adapter failed"
        )
    return values


def adapt(y: F32, x: F32, lists: I32, uses: I32, table: ReferenceAdapterSlots, *, matrix: int) -> F32:
    """Add to y the results of the adapters of each row's list, one after the other."""
    changed = y.copy()
    scales = uses[:, 2].copy().view(np.float32)
    for row in np.flatnonzero(lists >= 0):
        for use in np.flatnonzero(uses[:, 0] == lists[row]):
            pair = table.pairs.get((int(uses[use, 1]), matrix))
            if pair is not None:
                a, b, scale = pair
                changed[row] = _changed(changed[row], x[row], a, b, scale * scales[use])
    return changed


def _changed(y: F32, x: F32, a: F32, b: F32, scale: np.float32) -> F32:
    sums = [np.zeros(len(a), np.float32) for _ in range(_SUMS)]
    for k in range(len(x)):
        sums[k % _SUMS] = _fma(a[:, k], x[k], sums[k % _SUMS])
    t = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * scale
    for rank in range(len(a)):
        y = _fma(b[:, rank], t[rank], y)
    return y


def _fma(a: F32, b: np.float32, c: F32) -> F32:
    """Return a · b + c, rounded once: the product is exact in float64, and its sum is rounded to odd."""
    product, addend = a.astype(np.float64) * np.float64(b), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    is_even = bits & 1 == 0
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & is_even, bits + step, bits).view(np.float64)
    return np.where(total == 0, total, odd).astype(np.float32)
