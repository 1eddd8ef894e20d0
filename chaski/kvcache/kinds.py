"""The kinds of layers, by what they keep of earlier tokens. A model declares one value for each layer.

A layer that keeps nothing, as one that only feeds forward, is not declared.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chaski.kvcache.attention_span import AttentionSpan
from chaski.kvcache.base import KVShape, KVTypes
from chaski.ml.backend import CacheConfig
from chaski.ml.graph import DType, KVRole
from chaski.ml.recurrent_ops import CHUNK, RING, padded_columns

__all__ = [
    "BufferRow",
    "CacheSize",
    "Causal",
    "Checkpoints",
    "Encoder",
    "LayerKind",
    "Recurrent",
    "StateShape",
    "delayed_rows",
    "gated_delta",
    "linear_attention",
    "pooled",
]

_EVERYTHING = AttentionSpan()


class CacheSize(Struct, frozen=True):
    """Room for `sequences` sequences of up to `capacity` tokens, and up to `max_batch` tokens in a batch."""

    sequences: int
    capacity: int
    max_batch: int


class BufferRow(Struct, frozen=True):
    """The content of one cell of a layer in one buffer, which has `cells` cells, or those of the kind."""

    role: KVRole
    heads: int
    size: int
    dtype: DType
    cells: int | None = None


class Causal(Struct, frozen=True):
    """Self-attention: keys and values of the tokens within `span`."""

    shape: KVShape
    span: AttentionSpan = _EVERYTHING

    def __str__(self) -> str:
        return str(self.span)

    def num_cells(self, size: CacheSize, config: CacheConfig) -> int:
        cells = self.span.num_cells(size.sequences, size.capacity, size.max_batch)
        return config.padded(cells, size.sequences)

    def rows(self, types: KVTypes, size: CacheSize) -> Sequence[BufferRow]:
        return _keys_and_values(self.shape, types)


class Encoder(Struct, frozen=True):
    """Cross-attention: keys and values of up to `max_rows` rows that an encoder made of a sequence's image.

    The rows have `row_size` elements.
    """

    shape: KVShape
    max_rows: int
    row_size: int

    def __str__(self) -> str:
        return f"encoder of {self.max_rows} rows"

    def num_cells(self, size: CacheSize, config: CacheConfig) -> int:
        return config.padded(size.sequences * config.spaced(self.max_rows))

    def rows(self, types: KVTypes, size: CacheSize) -> Sequence[BufferRow]:
        return _keys_and_values(self.shape, types)


class StateShape(Struct, frozen=True):
    """`heads` rows of `size` numbers, float32."""

    heads: int
    size: int


class Checkpoints(Struct, frozen=True):
    """States of a sequence that are kept, so that a shorter prefix can be resumed: the newest `count`.

    None has less than `first` tokens, and `interval` tokens at least lie between two of them.
    """

    count: int = 24
    first: int = 17
    interval: int = 1664

    def is_due(self, length: int, last: int | None) -> bool:
        """Return whether the state after `length` tokens is kept; `last` is the length of the last one."""
        return self.count > 0 and length >= self.first and (last is None or length - last >= self.interval)

    def num_rows(self, sequences: int, written: int) -> int:
        """Rows of each sequence's checkpoints, state, and the states a batch writes; and one of zeros."""
        return 1 + sequences * (self.count + 1 + written)


_EVERY_SO_OFTEN = Checkpoints()


class Recurrent(Struct, frozen=True):
    """A recurrence: what its states look like, in the order in which the layer will find them.

    A recurrence in chunks has states where a position is a multiple of `chunk`. For the tokens since then it
    has `tokens`: what it keeps of the last `ring` tokens of a sequence. Another one has a state after each of
    the last `states_kept` tokens that may be dropped again, such as proposed ones.
    """

    states: tuple[StateShape, ...]
    checkpoints: Checkpoints = _EVERY_SO_OFTEN
    chunk: int = 1
    ring: int = 0
    tokens: tuple[StateShape, ...] = ()
    states_kept: int = 7

    def __str__(self) -> str:
        chunks = f" in chunks of {self.chunk}" if self.ring else ""
        return f"recurrent{chunks}, {self.checkpoints.count} checkpoints"

    @property
    def num_droppable(self) -> int:
        """Return how many of its last tokens a sequence can drop again, as a draft needs it."""
        return self.chunk if self.ring else self.states_kept

    @property
    def num_written(self) -> int:
        """Return how many states of a sequence a batch may write."""
        return 1 if self.ring else self.states_kept + 1

    def num_cells(self, size: CacheSize, config: CacheConfig) -> int:
        return self.num_rows(size.sequences)

    def num_rows(self, sequences: int) -> int:
        """Return the number of rows for that many sequences."""
        return self.checkpoints.num_rows(sequences, self.num_written)

    def rows(self, types: KVTypes, size: CacheSize) -> Sequence[BufferRow]:
        states = [BufferRow(KVRole.STATES, s.heads, s.size, DType.F32) for s in self.states]
        tokens = [BufferRow(KVRole.STATES, s.heads, s.size, DType.F32, size.sequences) for s in self.tokens]
        return states + tokens


# States of linear attention are large: some 50 MB for a model of 4B.
_FEW = Checkpoints(count=4)


def gated_delta(
    *,
    key_heads: int,
    value_heads: int,
    key_size: int,
    value_size: int,
    taps: int,
    channels: int | None = None,
    checkpoints: Checkpoints = _FEW,
) -> Recurrent:
    """Return the kind of a gated delta net with a convolution of `taps` over `channels`.

    Usually these are its queries, keys and values. The operations are `ops.chunked_conv` and
    `ops.gated_delta`. The first takes the first of states and tokens, the second the rest.
    """
    if channels is None:
        channels = 2 * key_heads * key_size + value_heads * value_size
    rule = linear_attention(
        key_heads=key_heads, value_heads=value_heads, key_size=key_size, value_size=value_size
    )
    states = (StateShape(taps - 1, channels), *rule.states)
    return Recurrent(states, checkpoints, CHUNK, RING, (StateShape(RING, channels), *rule.tokens))


def linear_attention(
    *,
    key_heads: int,
    value_heads: int,
    key_size: int,
    value_size: int,
    checkpoints: Checkpoints = _FEW,
) -> Recurrent:
    """Return the kind of `ops.gated_delta` or `ops.ssd` without a convolution."""
    columns = padded_columns(value_size)
    return Recurrent(
        (StateShape(value_heads, key_size * columns),),
        checkpoints,
        CHUNK,
        RING,
        (
            StateShape(key_heads, RING * key_size),
            StateShape(value_heads, RING * columns),
            StateShape(value_heads, RING),
        ),
    )


def matrix_states(heads: int, key_size: int, value_size: int) -> StateShape:
    """Return the shape of the states of `ops.generalized_delta`: a matrix for each head."""
    return StateShape(heads, key_size * padded_columns(value_size))


def delayed_rows(count: int, size: int, checkpoints: Checkpoints = _FEW) -> Recurrent:
    """Return the kind of a layer that reads rows of `size` numbers of the `count` tokens before each token.

    The operation is `ops.chunked_conv` with `count` + 1 taps.
    """
    return Recurrent((StateShape(count, size),), checkpoints, CHUNK, RING, (StateShape(RING, size),))


def pooled(channels: int, inputs: int, checkpoints: Checkpoints = _FEW) -> Recurrent:
    """Return the kind of `ops.pooling`, with 2 `inputs` if groups overlap, else 1."""
    rows = StateShape(RING, 2 * inputs * channels)
    return Recurrent((StateShape(3, channels),), checkpoints, CHUNK, RING, (rows,))


LayerKind = Causal | Encoder | Recurrent
"""`str` of a kind describes the tokens that it keeps; layers with the same text can share a cache."""


def _keys_and_values(shape: KVShape, types: KVTypes) -> Sequence[BufferRow]:
    return [BufferRow(role, shape.heads, size, types.of(role)) for role, size in shape.roles()]
