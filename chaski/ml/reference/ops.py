"""The definition of every operation, in NumPy and float32.

Each function takes the operands of the node as arrays, then the node's attributes by name. Slow on purpose:
this is what kernels are tested against, so it is written to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DEFINITIONS"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def embedding(ids: I32, table: F32) -> F32:
    return table[ids]


def linear(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    y = x @ weight.T
    return y if bias is None else y + bias


def add(a: F32, b: F32) -> F32:
    return a + b


def rows(x: F32, indices: I32) -> F32:
    return x[indices]


def rms_norm(x: F32, weight: F32, *, eps: float) -> F32:
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    y: F32 = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return y


def swiglu(gate: F32, up: F32) -> F32:
    # 1 + exp(-gate) overflows to infinity for very negative gates; the quotient is then the right limit, 0.
    with np.errstate(over="ignore"):
        y: F32 = gate / (1 + np.exp(-gate)) * up
    return y


def rope_table(positions: I32, *, frequencies: F32) -> F32:
    angles = positions.astype(np.float32)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def rope(x: F32, table: F32) -> F32:
    dims = 2 * table.shape[2]
    cos, sin = table[:, None, 0], table[:, None, 1]
    even, odd = x[..., 0:dims:2], x[..., 1:dims:2]
    y = x.copy()
    y[..., 0:dims:2] = even * cos - odd * sin
    y[..., 1:dims:2] = even * sin + odd * cos
    return y


def store(x: F32, cells: I32, buffer: F32) -> F32:
    buffer[cells] = x
    return buffer


def rotate_cells(cells: I32, table: F32, buffer: F32) -> F32:
    buffer[cells] = rope(buffer[cells], table)
    return buffer


def attention(q: F32, keys: F32, values: F32, cells: I32, spans: I32, *, scale: float) -> F32:
    heads, kv_heads = q.shape[1], keys.shape[1]
    y = np.empty((len(q), heads, values.shape[2]), np.float32)
    for token, (begin, end, _) in enumerate(spans):
        visible = cells[begin:end]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = keys[visible, kv_head] @ q[token, head] * np.float32(scale)
            weights = np.exp(scores - scores.max())
            y[token, head] = (weights / weights.sum()) @ values[visible, kv_head]
    return y


DEFINITIONS: dict[str, Callable[..., Any]] = {
    definition.__name__: definition
    for definition in (
        embedding,
        linear,
        add,
        rows,
        rms_norm,
        swiglu,
        rope_table,
        rope,
        store,
        rotate_cells,
        attention,
    )
}
