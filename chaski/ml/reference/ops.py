"""The definition of every operation, in NumPy and float32.

Each function takes the operands of the node as arrays, then the node's attributes by name. Slow on purpose:
this is what kernels are tested against, so it is written to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.formats.quant import QuantType, dequantize
from chaski.formats.quantize import quantize
from chaski.ml.reference.expert_ops import combine, dispatch, expert_linear, group, route

__all__ = ["DEFINITIONS", "Storage"]

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


def put_rows(x: F32, rows: F32, places: I32) -> F32:
    y = x.copy()
    y[places] = rows
    return y


def average_rows(x: F32, *, count: int) -> F32:
    y: F32 = x[: len(x) // count * count].reshape(-1, count, *x.shape[1:]).mean(axis=1)
    return y


def unfold(x: F32, *, count: int) -> F32:
    groups = x[: len(x) // count * count].reshape(-1, count, x.shape[1])
    return groups.swapaxes(1, 2).reshape(len(groups), -1)


def product(x: F32, weight: F32) -> F32:
    return x @ weight


def scale(x: F32, *, factor: float) -> F32:
    return x * np.float32(factor)


def rms_norm(x: F32, weight: F32 | None = None, *, eps: float) -> F32:
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    y: F32 = x / np.sqrt(mean_square + np.float32(eps))
    return y if weight is None else y * weight


def layer_norm(x: F32, weight: F32, bias: F32, *, eps: float) -> F32:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    y: F32 = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
    return y


def swiglu(gate: F32, up: F32) -> F32:
    # 1 + exp(-gate) overflows to infinity for very negative gates; the quotient is then the right limit, 0.
    with np.errstate(over="ignore"):
        y: F32 = gate / (1 + np.exp(-gate)) * up
    return y


def geglu(gate: F32, up: F32) -> F32:
    return gelu_tanh(gate) * up


def clamped_swiglu(gate: F32, up: F32, *, alpha: float, limit: float) -> F32:
    gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    with np.errstate(over="ignore"):
        y: F32 = gate / (1 + np.exp(-np.float32(alpha) * gate)) * (up + 1)
    return y


def gelu(x: F32) -> F32:
    erf = np.array([math.erf(value) for value in x.ravel() / math.sqrt(2)], np.float32).reshape(x.shape)
    return np.float32(0.5) * x * (1 + erf)


def gelu_tanh(x: F32) -> F32:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: F32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def softcap(x: F32, *, cap: float) -> F32:
    y: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return y


def position_scale(positions: I32, *, length: int, beta: float, offset: int) -> F32:
    steps = (positions + offset) // length
    return (1 + beta * np.log1p(steps)).astype(np.float32)[:, None]


def multiply(a: F32, b: F32) -> F32:
    return a * b


def add_vector(x: F32, vector: F32) -> F32:
    y: F32 = x + np.atleast_2d(vector)[0]
    return y


def columns(x: F32, *, first: int, count: int) -> F32:
    return x[:, first : first + count]


def join(*parts: F32, places: Sequence[tuple[int, int]]) -> F32:
    y = np.empty((len(parts[0]), sum(part.shape[1] for part in parts)), np.float32)
    for part, (first, stride) in zip(parts, places, strict=True):
        y[:, first : first + stride * part.shape[1] : stride] = part
    return y


def largest(x: F32, counts: I32, *, most: int) -> F32:
    y = np.zeros((len(x), 2, most), np.float32)
    for row, count, (values, indices) in zip(x, counts, y, strict=True):
        unordered = np.flatnonzero(np.isnan(row))[:1]
        chosen = unordered if unordered.size else np.argsort(-row, kind="stable")
        chosen = chosen[:count]
        values[: chosen.size], indices[: chosen.size] = row[chosen], chosen
    return y


def times(x: F32, factors: F32) -> F32:
    return x * factors.reshape(-1, *[1] * (x.ndim - 1))


def rope_table(positions: I32, *, frequencies: F32, magnitude: float, halves: bool) -> F32:
    angles = positions.astype(np.float32)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.float32(magnitude)


def rope(x: F32, table: F32, *, halves: bool) -> F32:
    pairs = table.shape[2]
    cos, sin = table[:, None, 0], table[:, None, 1]
    first = slice(0, pairs) if halves else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if halves else slice(1, 2 * pairs, 2)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


@dataclass(frozen=True, slots=True)
class Storage:
    """Keys or values: `rows` (cells, heads, size), each the float32 value of what `type` can hold.

    Permuted values are (heads, size, cells).
    """

    rows: F32
    type: QuantType
    is_permuted: bool = False

    @property
    def size(self) -> int:
        """Elements of a head."""
        size: int = self.rows.shape[1 if self.is_permuted else 2]
        return size

    def write(self, cells: I32, x: F32) -> None:
        """Round x (n, heads, size) to the type and put it into `cells`."""
        x = np.ascontiguousarray(x)
        rounded = dequantize(quantize(x, self.type), self.type, x.shape)
        if self.is_permuted:
            self.rows[:, :, cells] = rounded.transpose(1, 2, 0)
        else:
            self.rows[cells] = rounded

    def weighted(self, weights: F32, cells: npt.NDArray[np.integer[Any]], head: int) -> F32:
        """The sum of rows of a head with these weights -> (size,)."""
        sums: F32 = (
            self.rows[head][:, cells] @ weights if self.is_permuted else weights @ self.rows[cells, head]
        )
        return sums


def store(x: F32, cells: I32, buffer: Storage) -> Storage:
    buffer.write(cells, x)
    return buffer


def rotate_cells(cells: I32, table: F32, buffer: Storage, *, halves: bool) -> Storage:
    buffer.write(cells, rope(buffer.rows[cells], table, halves=halves))
    return buffer


def attention(
    q: F32,
    keys: Storage,
    values: Storage,
    cells: I32,
    spans: I32,
    sinks: F32 | None = None,
    *,
    scale: float,
    softcap: float,
) -> F32:
    seen = [cells[begin:end] for begin, end, _ in spans]
    hidden = [np.zeros(len(listed), np.float32) for listed in seen]
    return _attend(q, keys, values, seen, hidden, sinks, scale, softcap)


def dense_attention(
    q: F32,
    keys: Storage,
    values: Storage,
    matrix: npt.NDArray[np.floating[Any]],
    sinks: F32 | None = None,
    *,
    scale: float,
    softcap: float,
) -> F32:
    everything = [np.arange(matrix.shape[1])] * len(q)
    return _attend(q, keys, values, everything, list(matrix.astype(np.float32)), sinks, scale, softcap)


def _attend(
    q: F32,
    keys: Storage,
    values: Storage,
    seen: Sequence[npt.NDArray[np.integer[Any]]],
    masks: Sequence[F32],
    sinks: F32 | None,
    scale: float,
    softcap: float,
) -> F32:
    """Token by token: the cells that are looked at, and what is added to their scores."""
    heads, kv_heads = q.shape[1], keys.rows.shape[1]
    y = np.empty((len(q), heads, values.size), np.float32)
    for token, (cells, mask) in enumerate(zip(seen, masks, strict=True)):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = keys.rows[cells, kv_head] @ q[token, head] * np.float32(scale)
            if softcap:
                scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
            scores = scores + mask
            sink = -np.inf if sinks is None else sinks[head]
            highest = np.maximum(scores.max(), sink)
            weights = np.exp(scores - highest)
            total = weights.sum() + np.exp(sink - highest)
            y[token, head] = values.weighted(weights / total, cells, kv_head)
    return y


def short_conv(x: F32, segments: I32, states: Storage, *, filter: F32) -> F32:
    y = np.zeros_like(x)
    taps = filter.shape[1]
    for begin, end, source, target in segments:
        seen = np.concatenate([states.rows[source], x[begin:end]])
        for tap in range(taps):
            y[begin:end] += filter[:, tap] * seen[tap : tap + end - begin]
        states.rows[target] = seen[len(seen) - taps + 1 :]
    return y


DEFINITIONS: dict[str, Callable[..., Any]] = {
    definition.__name__: definition
    for definition in (
        embedding,
        linear,
        add,
        scale,
        times,
        multiply,
        add_vector,
        columns,
        join,
        largest,
        rows,
        rms_norm,
        layer_norm,
        swiglu,
        geglu,
        clamped_swiglu,
        gelu,
        gelu_tanh,
        put_rows,
        average_rows,
        unfold,
        product,
        softcap,
        position_scale,
        rope_table,
        rope,
        store,
        rotate_cells,
        attention,
        dense_attention,
        short_conv,
        route,
        group,
        dispatch,
        expert_linear,
        combine,
    )
}
