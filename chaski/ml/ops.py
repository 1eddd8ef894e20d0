"""What a model may compute with: one function an operation, each checks shapes and records a node.

The meaning of every operation is its plain NumPy form in `chaski.ml.reference.ops`, under the same name.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import DenseMask, KVBuffer, Mask, Shape, Tensor, Weight

__all__ = [
    "attention",
    "embedding",
    "linear",
    "rms_norm",
    "rope",
    "rope_table",
    "rotate_cells",
    "short_conv",
    "store",
    "swiglu",
]


def _require(condition: bool, op: str, *shapes: object) -> None:
    if not condition:
        raise ValueError(f"{op}: operands of shapes {', '.join(map(str, shapes))} do not fit")


def embedding(ids: Tensor, table: Weight) -> Tensor:
    """Rows of `table` (vocab, d) for `ids` (n,) int32 -> (n, d)."""
    _require(len(table.shape) == 2 and len(ids.shape) == 1, "embedding", table.shape, ids.shape)
    return ids.graph.record("embedding", (ids, table), (ids.shape[0], table.shape[1]))


def linear(x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
    """x (n, columns) times the transposed `weight` (rows, columns), plus `bias` (rows,) -> (n, rows)."""
    _require(x.shape[1:] == (weight.shape[1],), "linear", x.shape, weight.shape)
    _require(bias is None or bias.shape == (weight.shape[0],), "linear", weight.shape, bias and bias.shape)
    operands = (x, weight) if bias is None else (x, weight, bias)
    return x.graph.record("linear", operands, (x.shape[0], weight.shape[0]))


def rms_norm(x: Tensor, weight: Weight, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang & Sennrich 2019)."""
    _require(x.shape[-1:] == weight.shape, "rms_norm", x.shape, weight.shape)
    return x.graph.record("rms_norm", (x, weight), x.shape, eps=eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, element by element (Shazeer 2020)."""
    _require(gate.shape == up.shape, "swiglu", gate.shape, up.shape)
    return gate.graph.record("swiglu", (gate, up), gate.shape)


def rope_table(positions: Tensor, frequencies: npt.NDArray[np.float32]) -> Tensor:
    """Cosines and sines for `rope`: positions (n,) int32, frequencies (dims/2,) in radians per position.

    Returns (n, 2, dims/2): [cos, sin] of position · frequency. Shared by all layers with these frequencies.
    """
    shape: Shape = (positions.shape[0], 2, len(frequencies))
    frequencies = np.ascontiguousarray(frequencies, np.float32)
    return positions.graph.record("rope_table", (positions,), shape, frequencies=frequencies)


def rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the pairs (2j, 2j+1) of the first `dims` of each head of x (n, heads, size) (Su et al. 2021)."""
    _require(len(x.shape) == 3 and x.shape[0] == table.shape[0], "rope", x.shape, table.shape)
    return x.graph.record("rope", (x, table), x.shape)


def store(x: Tensor, cells: Tensor, buffer: KVBuffer) -> Tensor:
    """Write x (n, heads, size) to the rows `cells` (n,) int32 of `buffer`; returns the buffer's new content.

    The result has shape (cells, heads, size). `attention` must read it, so that the write comes first.
    """
    _require(x.shape[1:] == (buffer.heads, buffer.size), "store", x.shape, (buffer.heads, buffer.size))
    shape: Shape = (buffer.cells, buffer.heads, buffer.size)
    return x.graph.record("store", (x, cells, buffer), shape, buffer.dtype)


def rotate_cells(cells: Tensor, table: Tensor, buffer: KVBuffer) -> Tensor:
    """Turn the keys in the rows `cells` (n,) int32 of `buffer` by the angles of `table`, as `rope` does.

    No cell may be listed twice. Returns the buffer's new content (cells, heads, size), as `store` does.
    """
    pairs = table.shape[2]
    _require(isinstance(pairs, int) and 2 * pairs <= buffer.size, "rotate_cells", table.shape, buffer.size)
    _require(cells.shape == table.shape[:1], "rotate_cells", cells.shape, table.shape)
    shape: Shape = (buffer.cells, buffer.heads, buffer.size)
    return cells.graph.record("rotate_cells", (cells, table, buffer), shape, buffer.dtype)


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Mask | DenseMask,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """softmax(scale · q kᵀ) v of each token over the cells that it sees -> (n, heads, value size).

    q (n, heads, size); keys and values (cells, kv_heads, …) as `store` returns them. Consecutive groups of
    heads/kv_heads query heads share a key/value head (Ainslie et al. 2023). `sinks` (heads,) and `softcap`
    (0 for none): see `chaski.ml.nn.attention`.
    """
    _require(len(q.shape) == 3 and q.shape[2] == keys.shape[2], "attention", q.shape, keys.shape)
    _require(keys.shape[:2] == values.shape[:2], "attention", keys.shape, values.shape)
    heads, kv_heads = q.shape[1], keys.shape[1]
    fits = isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads == 0
    _require(fits, "attention", q.shape, keys.shape)
    shape: Shape = (q.shape[0], heads, values.shape[2])
    _require(sinks is None or sinks.shape == (heads,), "attention", q.shape, sinks and sinks.shape)
    seen = (mask.matrix,) if isinstance(mask, DenseMask) else (mask.cells, mask.spans)
    operands = (q, keys, values, *seen, *(() if sinks is None else (sinks,)))
    op = "dense_attention" if isinstance(mask, DenseMask) else "attention"
    return q.graph.record(op, operands, shape, scale=scale, softcap=softcap)


def short_conv(x: Tensor, filter: npt.NDArray[np.float32], states: KVBuffer, segments: Tensor) -> Tensor:
    """Convolve each sequence of the batch with its own past, one filter a channel -> (n, channels).

    x (n, channels), filter (channels, taps): y of a token is the sum of filter[:, j] · x over the `taps`
    tokens that end with it. A row of `states` (taps - 1, channels) has the inputs before the batch.
    `segments` (sequences, 4) int32 are begin, end, the row to read and the row to write, one after the other.
    It is the convolution of LFM2, and the one before gated linear attention.
    """
    channels, taps = filter.shape
    _require(x.shape[1:] == (channels,), "short_conv", x.shape, filter.shape)
    _require((states.heads, states.size) == (taps - 1, channels), "short_conv", filter.shape, states)
    _require(segments.shape[1:] == (4,), "short_conv", segments.shape)
    filter = np.ascontiguousarray(filter, np.float32)
    return x.graph.record("short_conv", (x, segments, states), x.shape, filter=filter)
