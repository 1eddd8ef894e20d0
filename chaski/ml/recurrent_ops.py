"""Linear recurrences in chunks. Their state is stored at positions that are multiples of the chunk length.

Between two such boundaries the rows of the open chunk are stored in a ring with room for two chunks. A row is
at its position modulo the ring's length. A full chunk stays open until the next token arrives.
`native/include/gated_delta.h` defines the order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import KVBuffer, Tensor, require

__all__ = ["CHUNK", "RING", "chunked_conv", "gated_delta", "padded_columns", "previous_row"]

CHUNK = 32
"""Tokens of a chunk."""

RING = 2 * CHUNK
"""The number of rows that are stored for each sequence: those of the open and of the previous chunk."""


def padded_columns(value_size: int) -> int:
    """Return the length of a row of values in storage, a multiple of 16."""
    return -(-value_size // 16) * 16


def chunked_conv(
    x: Tensor, filter: npt.NDArray[np.float32], states: KVBuffer, rows: KVBuffer, segments: Tensor
) -> Tensor:
    """Compute `short_conv` with stored inputs of the tokens of the open chunk -> (n, channels).

    A row of `states` (taps - 1, channels) contains the inputs before a boundary, and a row of `rows` (RING,
    channels) the inputs since then. `segments`: see `gated_delta`.
    """
    channels, taps = filter.shape
    require(x.shape[1:] == (channels,) and taps <= CHUNK, "chunked_conv", x.shape, filter.shape)
    require((states.heads, states.size) == (taps - 1, channels), "chunked_conv", filter.shape, states)
    require((rows.heads, rows.size) == (RING, channels), "chunked_conv", filter.shape, rows)
    require(segments.shape[1:] == (7,), "chunked_conv", segments.shape)
    filter = np.ascontiguousarray(filter, np.float32)
    return x.graph.record("chunked_conv", (x, segments, states, rows), x.shape, filter=filter)


def previous_row(x: Tensor, states: KVBuffer, rows: KVBuffer, segments: Tensor) -> Tensor:
    """Return the previous token's row of x (n, size) for each token of the batch; zeros for the first.

    This is a convolution that takes only the previous row. `states`, `rows` and `segments` are as for
    `chunked_conv` with two taps.
    """
    (size,) = x.shape[1:]
    assert isinstance(size, int)
    filter = np.tile(np.array([1, 0], np.float32), (size, 1))
    return chunked_conv(x, filter, states, rows, segments)


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: KVBuffer,
    rows: Sequence[KVBuffer],
    segments: Tensor,
    tiled: bool = False,
) -> Tensor:
    """Apply the gated delta rule (Yang et al. 2024) to each sequence of the batch -> (n, heads, value size).

    The state S (key size, value size) of each head decays, corrects its value for k, and returns that for q:
    S := exp(log_decay) S;  S := S + k (beta (v - Sᵀ k))ᵀ;  y = Sᵀ q.

    q and k (n, key heads, key size), v (n, heads, value size), log_decay and beta (n, heads). Consecutive
    groups of heads share a key head; with `tiled` head h has the key head h modulo their number.
    A row of `states` (heads, key size · padded value size) is the state at a boundary. The `rows` of a
    sequence are the keys, the pseudo values and the log decays of its last tokens. `segments` (sequences, 7)
    int32 has seven numbers for each sequence: the begin and the end of its tokens, the position of the first
    token, the cell of `rows`, the cell of `states` to read, the cell of `states` to write (0 if the tokens
    cross no boundary), and the boundary of the state to read.
    """
    require(q.shape == k.shape and len(q.shape) == 3, "gated_delta", q.shape, k.shape)
    require(log_decay.shape == beta.shape == v.shape[:2], "gated_delta", v.shape, log_decay.shape, beta.shape)
    (heads, value_size), (key_heads, key_size) = _sizes(v), _sizes(k)
    require(heads % key_heads == 0, "gated_delta", k.shape, v.shape)
    columns = padded_columns(value_size)
    kept = [(heads, key_size * columns)]
    kept += [(key_heads, RING * key_size), (heads, RING * columns), (heads, RING)]
    require(kept == [(each.heads, each.size) for each in (states, *rows)], "gated_delta", k.shape, v.shape)
    require(segments.shape[1:] == (7,), "gated_delta", segments.shape)
    return q.graph.record(
        "gated_delta", (q, k, v, log_decay, beta, segments, states, *rows), v.shape, tiled=tiled
    )


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return the number and the size of heads."""
    _, heads, size = x.shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return heads, size
