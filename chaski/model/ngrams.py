"""Embeddings of n-grams, as in Qwen 3.8 Flash-Next: a hash of the last tokens chooses rows of a large table.

The rows become a value, and a key for each residual stream. Keys that resemble a stream open its gate for the
value. A convolution over earlier tokens is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent, RecurrentLayer, delayed_rows
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import ConvKernel, Embedding, Linear, Module, StreamNorm
from chaski.model.hyper import HyperConfig

__all__ = ["NgramConfig", "NgramLayer", "NgramTable"]

_LEAST = 1e-6  # of a resemblance


class NgramConfig(Struct, frozen=True):
    """The hash of n-grams of up to `longest` tokens, and the convolution.

    layers           the layers that read the rows
    multipliers      one for each token of an n-gram
    sizes, offsets   the rows of each head; consecutive `heads` are for n-grams of one length
    row_size         elements of a row
    taps             of the convolution, which takes every `longest`-th token
    separator        the token that separates texts
    """

    layers: tuple[int, ...]
    longest: int
    heads: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    row_size: int
    taps: int
    separator: int

    @classmethod
    def read(cls, file: GGUFFile) -> NgramConfig | None:
        """Read the keys; None without such layers. Raises ModelError for lists that do not fit."""
        arch = file.architecture
        prefix = f"{arch}.ple"

        def numbers(name: str) -> tuple[int, ...]:
            return tuple(map(int, file.get(f"{prefix}.{name}", list[int], ())))

        if not numbers("layers"):
            return None

        config = cls(
            layers=numbers("layers"),
            longest=file.get(f"{prefix}.ngram_size", int),
            heads=file.get(f"{prefix}.heads_per_ngram", int),
            multipliers=numbers("layer_multipliers"),
            sizes=numbers("head_vocab_sizes"),
            offsets=numbers("head_offsets"),
            row_size=file.get(f"{arch}.embedding_length_per_layer_input", int),
            taps=file.get(f"{prefix}.conv_kernel", int),
            separator=file.get(f"{prefix}.eos_token_id", int),
        )
        count = (config.longest - 1) * config.heads
        fits = len(config.sizes) == len(config.offsets) == count and len(config.multipliers) == config.longest
        if config.longest < 2 or not fits or len(config.layers) != 1:
            what = f"the lists do not fit n-grams of {config.longest} tokens in one layer"
            raise ModelError(f"{file.path}: {prefix}: {what}")
        return config

    @property
    def width(self) -> int:
        """The elements of the rows of all heads."""
        return len(self.sizes) * self.row_size

    @property
    def num_rows(self) -> int:
        """The rows of the table that the hash can choose."""
        return max(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))

    def kinds(self, streams: int) -> Sequence[Recurrent]:
        """Return the storage for the numbers of earlier tokens, and for the convolution of the streams."""
        past = (self.taps - 1) * self.longest
        return [delayed_rows(self.longest - 1, self.longest - 1), delayed_rows(past, streams)]


class NgramTable(Embedding):
    """The table of rows."""

    def rows_of(self, config: NgramConfig, tokens: Tensor, cache: RecurrentLayer) -> Tensor:
        """Return the rows of all heads side by side (n, width)."""
        c = config
        number = ops.token_numbers(tokens)
        delays = np.zeros((c.longest - 1, c.longest), np.float32)
        for delay in range(1, c.longest):
            delays[delay - 1, c.longest - 1 - delay] = 1
        numbers = ops.concat([(number, index, 1) for index in range(c.longest - 1)])
        before = ops.chunked_conv(numbers, delays, cache.states[0], cache.rows[0], cache.segments)
        parts = []
        for head, (size, offset) in enumerate(zip(c.sizes, c.offsets, strict=True)):
            multipliers = c.multipliers[: 2 + head // c.heads]
            ids = ops.hash_ngrams(tokens, before, multipliers, size, offset, c.separator)
            parts.append((self(ids), head * c.row_size, 1))
        return ops.concat(parts)


class NgramLayer(Module):
    """The rows that a layer adds to its streams."""

    inline = True

    def __init__(self, config: NgramConfig, streams: HyperConfig) -> None:
        self._config, self._streams = config, streams
        s = streams
        self.ple_key = Linear(config.width, s.width)
        self.ple_value = Linear(config.width, s.size)
        self.ple_norm_key = StreamNorm(s.count, s.size, s.eps)
        self.ple_norm_query = StreamNorm(s.count, s.size, s.eps)
        self.ple_norm_conv = StreamNorm(s.count, s.size, s.eps)
        self.ple_conv1d = ConvKernel(s.width, config.taps)

    def __call__(self, x: Tensor, rows: Tensor, cache: RecurrentLayer) -> Tensor:
        """Return the streams x (n, width) with the values of `rows` added."""
        s, value = self._streams, self.ple_value(rows)
        keys = self.ple_norm_key(self.ple_key(rows)).reshape(s.count, s.size)
        queries = self.ple_norm_query(x).reshape(s.count, s.size)
        gates = ops.sigmoid(ops.rooted_dots(keys, queries, s.size**-0.5, _LEAST))
        parts = [
            (ops.scale_rows(value, ops.slice(gates, index, 1)), index * s.size, 1) for index in range(s.count)
        ]
        gated = ops.concat(parts)
        normalized = self.ple_norm_conv(gated)
        filter = self._dilated()
        convolved = ops.chunked_conv(normalized, filter, cache.states[0], cache.rows[0], cache.segments)
        return x + (gated + ops.silu(convolved))

    def _dilated(self) -> Any:
        """Return the filter with a zero for each token that it skips."""
        filter = self.ple_conv1d.weight.array
        assert filter is not None
        channels, taps = filter.shape
        dilated = np.zeros((channels, (taps - 1) * self._config.longest + 1), np.float32)
        dilated[:, :: self._config.longest] = filter
        return dilated
