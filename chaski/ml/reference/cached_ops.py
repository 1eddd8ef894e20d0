"""The definition of attention and of other operations that read earlier tokens, in NumPy and float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.formats.dequantize import dequantize
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize
from chaski.ml.graph import KVRole

__all__ = [
    "Storage",
    "attention",
    "attention_by_distance",
    "choose_cells",
    "chosen_attention",
    "copy_cells",
    "dense_attention",
    "entry_attention",
    "hadamard",
    "paged_attention",
    "rope",
    "rope_table",
    "rotate_cells",
    "short_conv",
    "store",
    "stored",
]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def rope_table(
    positions: I32, *, frequencies: F32, axes: I32, magnitude: float, neox: bool, block: int
) -> F32:
    positions = positions - positions % np.int32(block)
    angles = positions.reshape(len(positions), -1)[:, axes].astype(np.float32) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.float32(magnitude)


def rope(x: F32, table: F32, *, neox: bool) -> F32:
    pairs = table.shape[2]
    cos, sin = table[:, None, 0], table[:, None, 1]
    first = slice(0, pairs) if neox else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if neox else slice(1, 2 * pairs, 2)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


class Storage(Struct, frozen=True):
    """Keys or values: `rows` (cells, heads, size) of float32, rounded to values of `type`.

    Permuted values, for backends that ask for them (`CacheConfig`), are (heads, size, cells).
    """

    rows: F32
    type: QuantType
    role: KVRole
    is_permuted: bool = False

    @property
    def size(self) -> int:
        """The number of elements of a head."""
        size: int = self.rows.shape[1 if self.is_permuted else 2]
        return size

    @property
    def heads(self) -> int:
        """The number of heads of a row."""
        heads: int = self.rows.shape[0 if self.is_permuted else 1]
        return heads

    def by_cell(self) -> F32:
        """A view of the rows: (cells, heads, size)."""
        return self.rows.transpose(2, 0, 1) if self.is_permuted else self.rows

    def write(self, cells: I32, x: F32) -> None:
        """Round x (n, heads, size) to the type and store it in `cells`. A row with a NaN becomes all NaN."""
        x = np.ascontiguousarray(x)
        if self.type is QuantType.I16:
            rounded = _to_integers(x, self.role)
        elif self.type is QuantType.Q3_0:
            rounded = _to_three_bits(x)
        else:
            rounded = np.full_like(x, np.nan)
            are_numbers = np.isfinite(x).all(axis=(1, 2))
            found = x[are_numbers]
            rounded[are_numbers] = dequantize(quantize(found, self.type), self.type, found.shape)
        if self.is_permuted:
            self.rows[:, :, cells] = rounded.transpose(1, 2, 0)
        else:
            self.rows[cells] = rounded

    def weighted(self, weights: F32, cells: npt.NDArray[np.integer[Any]], head: int) -> F32:
        """Return the weighted sum of a head's rows in `cells` -> (size,)."""
        sums: F32 = (
            self.rows[head][:, cells] @ weights if self.is_permuted else weights @ self.rows[cells, head]
        )
        return sums


def _to_integers(x: F32, role: KVRole) -> F32:
    """Round each head to 16-bit integers with a scale, by the rule in native/kernels/integers.h."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    is_zero = largest < 1e-15
    factor = np.float32(8191) / np.where(is_zero, 1, largest)
    if role is KVRole.KEYS:
        length = np.linalg.norm(x, axis=-1, keepdims=True)
        factor = np.minimum(46000 / np.where(is_zero, 1, length), 32767 / np.where(is_zero, 1, largest))
    return np.where(is_zero, np.float32(0), np.rint(x * factor) / factor)


def hadamard(x: F32, *, block: int) -> F32:
    y = x.reshape(-1, block).copy()
    half = 1
    while half < block:
        pairs = y.reshape(-1, 2, half)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1, block)
        half *= 2
    return (y * np.float32(block**-0.5)).reshape(x.shape)


def _to_three_bits(x: F32) -> F32:
    """Round blocks of 32 to eight levels, by the rule in native/kernels/storage.cpp."""
    blocks = x.reshape(-1, 32)
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    d = extremes / np.float32(-4.2)
    is_usable = np.abs(d) > 1e-15
    inverse = np.where(is_usable, np.float32(1), np.float32(0)) / np.where(is_usable, d, np.float32(1))
    levels = np.clip(np.trunc(blocks * inverse + np.float32(4.5)), 0, 7) - np.float32(4)
    return (levels * d.astype(np.float16).astype(np.float32)).reshape(x.shape)


def store(x: F32, cells: I32, buffer: Storage) -> Storage:
    buffer.write(cells, x)
    return buffer


def stored(buffer: Storage, *, size: int) -> Storage:
    assert not buffer.is_permuted or size == buffer.size
    return buffer if buffer.is_permuted else replace(buffer, rows=buffer.rows[..., buffer.size - size :])


def rotate_cells(cells: I32, table: F32, buffer: Storage, *, neox: bool, block: int) -> Storage:
    turned = rope(hadamard(buffer.rows[cells], block=block), table, neox=neox)
    buffer.write(cells, hadamard(turned, block=block))
    return buffer


def copy_cells(sources: I32, targets: I32, buffer: Storage) -> Storage:
    cells = np.moveaxis(buffer.rows, -1, 0) if buffer.is_permuted else buffer.rows
    cells[targets] = cells[sources]
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


def attention_by_distance(
    q: F32,
    keys: Storage,
    values: Storage,
    cells: I32,
    spans: I32,
    positions: I32,
    *,
    scale: float,
    softcap: float,
    table: F32,
) -> F32:
    assert not softcap, "softcap would have to precede the bias"
    reach = table.shape[1] // 2
    seen = [cells[begin:end] for begin, end, _ in spans]
    distances = [
        np.arange(first, first + end - begin) - position
        for (begin, end, first), position in zip(spans, positions, strict=True)
    ]
    added = [table[:, np.clip(each, -reach, reach) + reach] for each in distances]
    return _attend(q, keys, values, seen, added, None, scale, softcap)


def choose_cells(
    q: F32,
    keys: Storage,
    cells: I32,
    spans: I32,
    weights: F32 | None = None,
    *,
    scale: float,
    count: int,
    block: int,
    local: int,
) -> I32:
    weights = np.ones(q.shape[:2], np.float32) if weights is None else weights
    chosen = np.zeros((len(q), count * block + (0 if local else block - 1)), np.int32)
    for row, token, factors, (begin, end, first) in zip(chosen, q, weights, spans, strict=True):
        assert first % block == 0, "a span begins inside of a block"
        seen = cells[begin:end]
        whole = len(seen) // block * block
        with_keys = seen if local else seen[block - 1 : whole : block]
        least = np.float32(-np.inf if local else 0)
        products = np.maximum(token @ keys.rows[with_keys, 0].T * np.float32(scale), least)
        scores = np.zeros(len(with_keys), np.float32)
        for factor, product in zip(factors, products, strict=True):
            scores += factor * product
        scores[np.isnan(scores)] = -np.inf
        blocks = np.split(seen[:whole], whole // block) if whole else []
        blocks += [seen[whole:]] if local and whole < len(seen) else []
        if local:
            scores = np.array([scores[i * block : (i + 1) * block].max() for i in range(len(blocks))])
            scores[-local:] = np.inf
        best = np.sort(np.argsort(-scores, kind="stable")[:count])
        found = np.concatenate([*(blocks[i] for i in best), *([] if local else [seen[whole:]])])
        row[: len(found)] = found
    return chosen


def chosen_attention(
    q: F32,
    keys: Storage,
    values: Storage,
    cells: I32,
    spans: I32,
    sinks: F32 | None = None,
    *,
    scale: float,
    softcap: float,
    count: int,
    block: int,
    local: int,
) -> F32:
    lengths = [end - begin for begin, end, _ in spans]
    blocks = [-(-length // block) if local else length // block for length in lengths]
    counts = [length - max(number - count, 0) * block for length, number in zip(lengths, blocks, strict=True)]
    seen = [row[:number] for row, number in zip(cells, counts, strict=True)]
    hidden = [np.zeros(len(listed), np.float32) for listed in seen]
    return _attend(q, keys, values, seen, hidden, sinks, scale, softcap)


def entry_attention(
    q: F32,
    keys: Storage,
    cells: I32,
    spans: I32,
    entries: Storage,
    groups: I32,
    entry_spans: I32,
    sinks: F32 | None = None,
    *,
    scale: float,
    length: int,
    block: int,
    count: int,
) -> F32:
    y = np.empty_like(q)
    for token, ((begin, end, _), (first, last, _)) in enumerate(zip(spans, entry_spans, strict=True)):
        number = (last - first) // block
        number = min(count, number) if count else number
        listed = groups[token] if count else groups[first:last]
        lasts = listed[block - 1 : number * block : block]
        rows = np.concatenate([keys.rows[cells[begin:end]], entries.rows[lasts]])
        both = Storage(rows, keys.type, keys.role)
        seen, mask = np.arange(len(rows)), np.zeros(len(rows), np.float32)
        y[token : token + 1] = _attend(q[token : token + 1], both, both, [seen], [mask], sinks, scale, 0)
    return y


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


def paged_attention(
    q: F32,
    keys: Storage,
    values: Storage,
    block_table: I32,
    lengths: I32,
    query_starts: I32,
    bounds: I32,
    sinks: F32 | None = None,
    *,
    scale: float,
    softcap: float,
    page: int,
) -> F32:
    seen: list[npt.NDArray[np.integer[Any]]] = []
    stops = [*query_starts.tolist(), len(q)][1:]
    for blocks, length, start, stop in zip(block_table, lengths, query_starts, stops, strict=True):
        for begin, end in bounds[start:stop].tolist():
            positions = np.arange(begin, min(end, length))
            seen.append(blocks[positions // page] * page + positions % page)
    hidden = [np.zeros(len(listed), np.float32) for listed in seen]
    return _attend(q, keys, values, seen, hidden, sinks, scale, softcap)


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
    """Attend token by token. `seen` are each token's cells, and `masks` is added to their scores."""
    heads, kv_heads = q.shape[1], keys.rows.shape[1]
    y = np.empty((len(q), heads, values.size), np.float32)
    for token, (cells, mask) in enumerate(zip(seen, masks, strict=True)):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = keys.rows[cells, kv_head] @ q[token, head] * np.float32(scale)
            if softcap:
                scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
            scores = scores + (mask if mask.ndim == 1 else mask[head])
            sink = -np.inf if sinks is None else sinks[head]
            highest = np.maximum(scores.max(), sink)
            weights = np.exp(scores - highest)
            total = weights.sum() + np.exp(sink - highest)
            y[token, head] = values.weighted(weights / total, cells, kv_head)
    return y


def short_conv(x: F32, segments: I32, states: Storage, *, filter: F32) -> F32:
    y = np.zeros_like(x)
    taps = filter.shape[1]
    for begin, end, first, source, target in segments:
        seen = np.concatenate([states.rows[source], x[first:end]])
        for tap in range(taps):
            y[begin:end] += filter[:, tap] * seen[begin - first + tap : end - first + tap]
        states.rows[target] = seen[len(seen) - taps + 1 :]
    return y
