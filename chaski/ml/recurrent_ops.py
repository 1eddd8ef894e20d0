"""Linear recurrences. Those in chunks store their state at multiples of the chunk length.

Between two such boundaries the rows of the open chunk are stored in a ring with room for two chunks. A row is
at its position modulo the ring's length. A full chunk stays open until the next token arrives.
`native/include/gated_delta.h` defines the order of operations. Those of recurrences whose states pass from
token to token are in `selective_scan.h` (Mamba) and `generalized_delta.h` (RWKV, Kimi Linear).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import KVBuffer, Tensor, require

__all__ = [
    "CHUNK",
    "RING",
    "chunked_conv",
    "gated_delta",
    "generalized_delta",
    "padded_columns",
    "pooling",
    "selective_scan",
    "ssd",
]

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
    _check("gated_delta", q, k, v, log_decay, beta, (states, *rows), segments)
    return q.graph.record(
        "gated_delta", (q, k, v, log_decay, beta, segments, states, *rows), v.shape, tiled=tiled
    )


def ssd(
    c: Tensor,
    b: Tensor,
    x: Tensor,
    log_decay: Tensor,
    dt: Tensor,
    d: npt.NDArray[np.float32],
    states: KVBuffer,
    rows: Sequence[KVBuffer],
    segments: Tensor,
) -> Tensor:
    """Apply the state-space duality of Mamba 2 (Dao and Gu 2024) to each sequence -> (n, heads, head size).

    The state S (state size, head size) of each head decays, takes a value for b, and returns that for c:
    S := exp(log_decay) S + b (dt x)ᵀ;  y = Sᵀ c + d x.

    c and b (n, groups, state size), x (n, heads, head size), log_decay and dt (n, heads), d (heads,).
    Consecutive heads share a group. `states`, `rows` and `segments` are as for `gated_delta`, whose key heads
    are the groups.
    """
    _check("ssd", c, b, x, log_decay, dt, (states, *rows), segments)
    require(d.shape == x.shape[1:2], "ssd", d.shape, x.shape)
    d = np.ascontiguousarray(d, np.float32)
    return c.graph.record("ssd", (c, b, x, log_decay, dt, segments, states, *rows), x.shape, d=d)


def pooling(
    values: Tensor,
    scores: Tensor,
    bias: npt.NDArray[np.float32],
    states: KVBuffer,
    rows: KVBuffer,
    segments: Tensor,
) -> Tensor:
    """Return the softmax-weighted means of groups of tokens up to each token -> (n, channels).

    A group is `ratio` positions from a multiple of it on. values and scores are (n, inputs · channels), and
    `bias` (ratio, inputs · channels) is added to the scores by the place in the group. Each channel has its
    own softmax. With two inputs, groups overlap: the second ones are for a token's own group, and the first
    ones for the group after it, which takes all tokens of the group before (DeepSeek V4). So a token has the
    result of its whole group if it is the last one.
    A row of `states` (3, channels) is the state at a boundary, and a row of `rows` (RING, 2 · inputs ·
    channels) contains the inputs since then. `segments`: see `gated_delta`. Without overlap, `ratio` is a
    multiple of CHUNK or divides it; with overlap it divides it.
    """
    (ratio, width), channels = bias.shape, states.size
    fits = values.shape == scores.shape and values.shape[1:] == (width,) and width in (channels, 2 * channels)
    require(fits and states.heads == 3, "pooling", values.shape, scores.shape, bias.shape, states)
    require((rows.heads, rows.size) == (RING, 2 * width), "pooling", bias.shape, rows)
    in_chunks = CHUNK % ratio == 0 or (ratio % CHUNK == 0 and width == channels)
    require(in_chunks and segments.shape[1:] == (7,), "pooling", bias.shape, segments.shape)
    return values.graph.record(
        "pooling",
        (values, scores, segments, states, rows),
        (values.shape[0], channels),
        bias=np.ascontiguousarray(bias, np.float32),
    )


def selective_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    a: npt.NDArray[np.float32],
    states: KVBuffer,
    segments: Tensor,
) -> Tensor:
    """Apply the selective scan of Mamba (Gu and Dao 2023) to each sequence of the batch -> (n, channels).

    The state S (state size,) of each channel decays and takes the channel's value, token by token:
    S := exp(dt a) S + dt x b;  y = S · c.

    x and dt (n, channels), b and c (n, state size), a (channels, state size). A row of `states` (state size,
    channels) is the state after some tokens. `segments`: see `short_conv`.
    """
    channels, state_size = a.shape
    require(x.shape == dt.shape and x.shape[1:] == (channels,), "selective_scan", x.shape, dt.shape, a.shape)
    require(b.shape == c.shape and b.shape[1:] == (state_size,), "selective_scan", b.shape, c.shape, a.shape)
    require((states.heads, states.size) == (state_size, channels), "selective_scan", a.shape, states)
    require(segments.shape[1:] == (5,), "selective_scan", segments.shape)
    a = np.ascontiguousarray(a, np.float32)
    return x.graph.record("selective_scan", (x, dt, b, c, segments, states), x.shape, a=a)


def generalized_delta(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    states: KVBuffer,
    segments: Tensor,
    correction: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply the generalized delta rule (Peng et al. 2025) to each sequence -> (n, heads, value size).

    The rows of the state S (key size, value size) of each head decay, each at its own rate. Then S takes a
    value v for k, and with `correction` = (a, b) also adds, for b, what it returned for a before the decay:
    S := diag(w) S + b (aᵀ S) + k vᵀ;  y = Sᵀ r.

    r, w, k, a and b (n, heads, key size), v (n, heads, value size). A row of `states` (heads, key size ·
    padded value size) is the state after some tokens. `segments`: see `short_conv`.
    """
    vectors = (r, w, k, *(correction or ()))
    (heads, key_size), (_, value_size) = _sizes(k), _sizes(v)
    require(all(each.shape == k.shape for each in vectors), "generalized_delta", *(x.shape for x in vectors))
    require(v.shape[:2] == k.shape[:2], "generalized_delta", k.shape, v.shape)
    shape = (heads, key_size * padded_columns(value_size))
    require((states.heads, states.size) == shape, "generalized_delta", k.shape, v.shape, states)
    require(segments.shape[1:] == (5,), "generalized_delta", segments.shape)
    return r.graph.record("generalized_delta", (r, w, k, v, segments, states, *(correction or ())), v.shape)


def _check(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    kept: Sequence[KVBuffer],
    segments: Tensor,
) -> None:
    require(q.shape == k.shape and len(q.shape) == 3, name, q.shape, k.shape)
    require(log_decay.shape == beta.shape == v.shape[:2], name, v.shape, log_decay.shape, beta.shape)
    (heads, value_size), (key_heads, key_size) = _sizes(v), _sizes(k)
    require(heads % key_heads == 0, name, k.shape, v.shape)
    columns = padded_columns(value_size)
    shapes = [(heads, key_size * columns)]
    shapes += [(key_heads, RING * key_size), (heads, RING * columns), (heads, RING)]
    require(shapes == [(each.heads, each.size) for each in kept], name, k.shape, v.shape)
    require(segments.shape[1:] == (7,), name, segments.shape)


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return the number and the size of heads."""
    _, heads, size = x.shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return heads, size
