"""The definition of every operation, in NumPy and float32.

Each function takes the node's operands as arrays, then its attributes by name. The code is written for
readability, not speed, because kernels are tested against it. Elementwise operations and products with
matrices come from their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.products import PRODUCTS
from chaski.ml.reference.adapter_ops import adapt
from chaski.ml.reference.cached_ops import (
    attention,
    attention_by_distance,
    choose_cells,
    chosen_attention,
    copy_cells,
    dense_attention,
    entry_attention,
    hadamard,
    paged_attention,
    rope,
    rope_table,
    rotate_cells,
    short_conv,
    store,
    stored,
)
from chaski.ml.reference.moe_ops import (
    combine,
    dispatch,
    group_by_expert,
    join_experts,
    router,
    scale_by_expert,
    scale_experts,
)
from chaski.ml.reference.recurrent_ops import (
    chunked_conv,
    gated_delta,
    generalized_delta,
    pooling,
    selective_scan,
    ssd,
)

__all__ = ["DEFINITIONS"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def embedding(ids: I32, table: F32) -> F32:
    return table[ids]


def token_numbers(tokens: I32) -> F32:
    return (tokens + 1).astype(np.float32)[:, None]


def hash_ngrams(
    tokens: I32, before: F32, *, multipliers: Sequence[int], size: int, offset: int, separator: int
) -> I32:
    mixed = tokens.astype(np.uint64) * np.uint64(multipliers[0])
    is_near = np.ones(len(tokens), bool)
    for numbers, multiplier in zip(before.T, multipliers[1:], strict=False):
        earlier = numbers.astype(np.int64) - 1
        is_near &= (earlier >= 0) & (earlier != separator)
        mixed ^= np.where(is_near, earlier, separator).astype(np.uint64) * np.uint64(multiplier)
    return (np.uint64(offset) + mixed % np.uint64(size)).astype(np.int32)


def rooted_dots(a: F32, b: F32, *, factor: float, least: float) -> F32:
    sums = (a * b).sum(axis=-1) * np.float32(factor)
    y: F32 = np.sign(sums) * np.sqrt(np.maximum(np.abs(sums), np.float32(least)))
    return y


def relative_dots(x: F32, table: F32, first: I32, *, count: int) -> F32:
    places = first[:, None] + np.arange(count)
    seen = table[np.clip(places, 0, len(table) - 1)]
    seen[(places < 0) | (places >= len(table))] = 0
    y: F32 = x @ seen.swapaxes(1, 2)
    return y


def rows(x: F32, indices: I32) -> F32:
    return x[indices]


def scatter(x: F32, rows: F32, places: I32) -> F32:
    y = x.copy()
    y[places] = rows
    return y


def average_rows(x: F32, *, count: int) -> F32:
    y: F32 = x[: len(x) // count * count].reshape(-1, count, *x.shape[1:]).mean(axis=1)
    return y


def space_to_depth(x: F32, *, count: int) -> F32:
    groups = x[: len(x) // count * count].reshape(-1, count, x.shape[1])
    return groups.swapaxes(1, 2).reshape(len(groups), -1)


def product(x: F32, weight: F32) -> F32:
    return x @ weight


def rms_norm(x: F32, weight: F32 | None = None, *, eps: float) -> F32:
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    y: F32 = x / np.sqrt(mean_square + np.float32(eps))
    return y if weight is None else y * weight


def rms(x: F32) -> F32:
    y: F32 = np.sqrt(np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)).astype(np.float32)
    return y


def mix_streams(x: F32, weights: F32) -> F32:
    y: F32 = (x[:, :, None] * weights[..., None]).sum(axis=1)
    return y


def sinkhorn(x: F32, *, iterations: int, eps: float) -> F32:
    powers = np.exp(x - x.max(axis=2, keepdims=True))
    y: F32 = powers / powers.sum(axis=2, keepdims=True) + np.float32(eps)
    y = y / (y.sum(axis=1, keepdims=True) + np.float32(eps))
    for _ in range(iterations - 1):
        y = y / (y.sum(axis=2, keepdims=True) + np.float32(eps))
        y = y / (y.sum(axis=1, keepdims=True) + np.float32(eps))
    return y


def gaussian_top_k(x: F32, *, multiplier: float) -> F32:
    wide = x.astype(np.float64)
    cutoff = wide.mean(axis=-1, keepdims=True) + multiplier * wide.std(axis=-1, keepdims=True)
    y: F32 = np.maximum(x - cutoff.astype(np.float32), np.float32(0))
    return y


def layer_norm(x: F32, weight: F32, bias: F32 | None = None, *, eps: float) -> F32:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    y: F32 = centred / np.sqrt(variance + np.float32(eps)) * weight
    return y if bias is None else y + bias


def multiply_vector(x: F32, vector: F32) -> F32:
    return x * vector


def position_scale(positions: I32, *, length: int, beta: float, offset: int) -> F32:
    steps = (positions + offset) // length
    return (1 + beta * np.log1p(steps)).astype(np.float32)[:, None]


def add_vector(x: F32, vector: F32) -> F32:
    y: F32 = x + np.atleast_2d(vector)[0]
    return y


def slice(x: F32, *, first: int, count: int) -> F32:
    return x[..., first : first + count]


def concat(*parts: F32, places: Sequence[tuple[int, int]]) -> F32:
    y = np.empty((*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)), np.float32)
    for part, (first, stride) in zip(parts, places, strict=True):
        y[..., first : first + stride * part.shape[-1] : stride] = part
    return y


def top_k(x: F32, counts: I32, *, max_k: int) -> F32:
    y = np.zeros((len(x), 2, max_k), np.float32)
    for row, count, (values, indices) in zip(x, counts, y, strict=True):
        unordered = np.flatnonzero(np.isnan(row))[:1]
        chosen = unordered if unordered.size else np.argsort(-row, kind="stable")
        chosen = chosen[:count]
        values[: chosen.size], indices[: chosen.size] = row[chosen], chosen
    return y


def sample(top: F32, counts: I32, chances: I32, *, size: int) -> F32:
    y = np.zeros((len(top), 1), np.float32)
    for (logits, ids), count, chance, found in zip(top, counts, chances, y, strict=True):
        kept = min(count, size)
        temperature, (top_p, min_p) = chance[1:2].view(np.float32), chance[2:].view(np.float64)
        found[0] = ids[0]
        if kept and temperature > 0 and np.isfinite(logits[0] / temperature):
            scaled = logits[:kept] / temperature
            weights = np.floor(np.exp(scaled - scaled[0], dtype=np.float64) * 2**33)
            if top_p < 1:
                kept = np.searchsorted(weights.cumsum(), max(top_p, 0) * weights.sum(), side="right") + 1
            weights = weights[:kept]
            weights = weights[weights >= min(min_p, 1) * weights[0]]
            mass = max(1, -(-int(chance[0]) * int(weights.sum()) >> 24))
            found[0] = ids[np.searchsorted(weights.cumsum(), mass)]
    return y


def scale_heads(x: F32, *, factors: F32) -> F32:
    return x * factors[:, None]


def head_sums(x: F32) -> F32:
    y: F32 = x.astype(np.float64).sum(axis=-1).astype(np.float32)
    return y


def scale_rows(x: F32, factors: F32) -> F32:
    return x * factors.reshape(*factors.shape, *[1] * (x.ndim - 2))


DEFINITIONS: dict[str, Callable[..., Any]] = {
    **{name: operation.formula for name, operation in ELEMENTWISE.items()},
    **PRODUCTS,
} | {
    definition.__name__: definition
    for definition in (
        embedding,
        adapt,
        scale_heads,
        head_sums,
        scale_rows,
        add_vector,
        multiply_vector,
        slice,
        concat,
        top_k,
        sample,
        rows,
        token_numbers,
        hash_ngrams,
        rooted_dots,
        relative_dots,
        rms_norm,
        layer_norm,
        rms,
        gaussian_top_k,
        scatter,
        average_rows,
        space_to_depth,
        product,
        position_scale,
        rope_table,
        rope,
        hadamard,
        store,
        stored,
        rotate_cells,
        copy_cells,
        attention,
        attention_by_distance,
        choose_cells,
        entry_attention,
        mix_streams,
        pooling,
        sinkhorn,
        entry_attention,
        mix_streams,
        sinkhorn,
        pooling,
        chosen_attention,
        dense_attention,
        paged_attention,
        short_conv,
        chunked_conv,
        gated_delta,
        selective_scan,
        generalized_delta,
        ssd,
        router,
        scale_by_expert,
        scale_experts,
        group_by_expert,
        join_experts,
        dispatch,
        combine,
    )
}
