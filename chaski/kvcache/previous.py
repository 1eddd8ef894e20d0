"""The row of the token before, for layers of models that need not be recurrent: kept as values are."""

from __future__ import annotations

import math

import numpy as np

from chaski.kvcache.attention_span import AttentionSpan
from chaski.kvcache.base import KVShape, LayerCache
from chaski.kvcache.kinds import Causal
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor

__all__ = ["StoredRows"]

_LARGEST, _BLOCK = 256, 32
_NEVER_TURNED = Rope(np.zeros(0, np.float32))


class StoredRows:
    """A row of `size` numbers for each token, kept in cells; the next token reads it.

    Rows are values, and attention that sees one token returns its value, whatever the keys are. So rows are
    shared, forgotten and moved with the cells of a sequence, at any of its positions. They are cut into heads
    that all types of values have blocks for, where the size allows it.
    """

    def __init__(self, size: int) -> None:
        parts = [part for part in range(1, _LARGEST + 1) if size % part == 0]
        self._part = max([part for part in parts if part % _BLOCK == 0] or parts)
        self._heads = size // self._part
        self._key_size = math.gcd(self._part, _BLOCK)

    @property
    def kind(self) -> Causal:
        """The cache that they need."""
        shape = KVShape(self._heads, self._key_size, self._part, _NEVER_TURNED)
        return Causal(shape, AttentionSpan(is_previous=True))

    def previous(self, rows: Tensor, cache: LayerCache) -> Tensor:
        """Store the rows (n, size) of a batch -> for each token that of the one before.

        The first token of a sequence gets its own.
        """
        values = rows.reshape(self._heads, self._part)
        keys = ops.rms_norm(ops.slice(values, 0, self._key_size), None, 1e-6)
        found = ops.attention(keys, *cache.update(keys, values), scale=1.0)
        return found.reshape(self._heads * self._part)
