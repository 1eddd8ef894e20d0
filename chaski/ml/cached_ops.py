"""Attention and other operations on earlier tokens: rotary positions, storage, states of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import UnsupportedError
from chaski.ml.graph import (
    AnyMask,
    ChosenMask,
    DenseMask,
    DType,
    Graph,
    KVBuffer,
    Mask,
    PagedMask,
    Rope,
    Shape,
    Tensor,
    Weight,
    require,
)

__all__ = [
    "ATTENTION",
    "CONTENTS",
    "DistanceBias",
    "attention",
    "choose_cells",
    "copy_cells",
    "entry_attention",
    "hadamard",
    "rope",
    "rope_table",
    "rotate_cells",
    "short_conv",
    "store",
    "stored",
]

ATTENTION = (
    "attention",
    "attention_by_distance",
    "chosen_attention",
    "dense_attention",
    "paged_attention",
)
"""The operations of `attention`: one for each form of a mask, and one with a distance bias."""

CONTENTS = ("store", "stored", "rotate_cells", "copy_cells")
"""The operations that return the content of a buffer, their last operand."""


def rope_table(positions: Tensor, rope: Rope, block: int = 1) -> Tensor:
    """Return cosines and sines for `rope` at `positions` (n,) int32 -> (n, 2, pairs), times the magnitude.

    Positions are first rounded down to multiples of `block`.

    If tokens have coordinates (n, axes) instead of a position, `rope.axes` names the coordinate that turns
    each pair. Equal coordinates give the same bits as a position. All layers with this rope share the table.
    """
    pairs, width = len(rope.frequencies), positions.shape[-1] if len(positions.shape) > 1 else 1
    axes = np.array((0,) * pairs if len(positions.shape) == 1 else rope.axes or (), np.int32)
    fits = isinstance(width, int) and axes.shape == (pairs,) and bool((axes < width).all())
    require(len(positions.shape) <= 2 and fits, "rope_table", positions.shape, rope.axes)
    shape: Shape = (positions.shape[0], 2, pairs)
    frequencies = np.ascontiguousarray(rope.frequencies, np.float32)
    return positions.graph.record(
        "rope_table",
        (positions,),
        shape,
        frequencies=frequencies,
        axes=axes,
        magnitude=rope.magnitude,
        neox=rope.neox,
        block=block,
    )


def rope(x: Tensor, table: Tensor | None) -> Tensor:
    """Turn the pairs of each head of x (n, heads, size) by the angles of `table`; see `Rope`.

    A table that `scale_rows` has multiplied by factors also scales the heads. None turns nothing.
    """
    if table is None:
        return x
    require(len(x.shape) == 3 and x.shape[0] == table.shape[0], "rope", x.shape, table.shape)
    return x.graph.record("rope", (x, table), x.shape, neox=_is_neox(table))


def _is_neox(table: Tensor) -> bool:
    """Return whether the rope that `table` was made for pairs its elements as GPT-NeoX does.

    A table may be multiplied by factors, or be that of an earlier token.
    """
    source = table
    while source.op in ("scale_rows", "reshape", "chunked_conv"):
        before = source.operands[0]
        assert isinstance(before, Tensor)
        source = before
    assert source.op == "rope_table", f"{source.op} is not a rope table"
    return bool(source.attributes["neox"])


def hadamard(x: Tensor, block: int) -> Tensor:
    """Multiply each `block` consecutive elements of the heads of x by an orthogonal matrix -> x's shape.

    It is the Hadamard matrix over sqrt(block), a power of two that divides the size of a head, with the order
    of operations of native/include/hadamard.h. It is its own inverse. A block of 1 changes nothing.
    """
    if block == 1:
        return x
    size = x.shape[-1]
    is_whole = len(x.shape) == 3 and isinstance(size, int) and size % block == 0
    require(is_whole, "hadamard", x.shape, block)
    return x.graph.record("hadamard", (x,), x.shape, block=block)


def _rotated(content: Tensor) -> int:
    """Return the rotation of the heads of a buffer's content."""
    buffer = content.operands[-1] if content.op in CONTENTS else None
    return buffer.rotated if isinstance(buffer, KVBuffer) else 1


def store(x: Tensor, cells: Tensor, buffer: KVBuffer) -> Tensor:
    """Write x (n, heads, size) to the rows `cells` (n,) int32 of `buffer`; return the buffer's new content.

    The result has shape (cells, heads, size). `attention` must read it, which orders the write first. Heads
    of some types are rotated before (`KVBuffer`), which `attention` and the other readers expect.
    """
    require(x.shape[1:] == (buffer.heads, buffer.size), "store", x.shape, (buffer.heads, buffer.size))
    shape: Shape = (buffer.cells, buffer.heads, buffer.size)
    return x.graph.record("store", (hadamard(x, buffer.rotated), cells, buffer), shape, buffer.dtype)


def stored(graph: Graph, buffer: KVBuffer, size: int | None = None) -> Tensor:
    """Return the content of `buffer` after earlier runs, in the form that `store` returns.

    With `size` it is the last `size` elements of each head. If `buffer` has keys, `attention` may read these
    as their values: layers with latent attention store no others. Raises UnsupportedError if a block that is
    rotated together has elements before these.
    """
    size = buffer.size if size is None else size
    require(0 < size <= buffer.size, "stored", (buffer.size,), (size,))
    if (buffer.size - size) % buffer.rotated:
        raise UnsupportedError(
            f"keys of type {buffer.dtype.value} are rotated in blocks of {buffer.rotated} elements, and the "
            f"last {size} elements of this model's keys of {buffer.size} are no whole blocks; use q8_0 or i16"
        )
    shape: Shape = (buffer.cells, buffer.heads, size)
    return graph.record("stored", (buffer,), shape, buffer.dtype, size=size)


def rotate_cells(cells: Tensor, table: Tensor, buffer: KVBuffer) -> Tensor:
    """Turn the keys in the rows `cells` (n,) int32 of `buffer` by the angles of `table`, as `rope` does.

    No cell may be listed twice. Returns the buffer's new content (cells, heads, size), as `store` does.
    """
    pairs = table.shape[2]
    require(isinstance(pairs, int) and 2 * pairs <= buffer.size, "rotate_cells", table.shape, buffer.size)
    require(cells.shape == table.shape[:1], "rotate_cells", cells.shape, table.shape)
    shape: Shape = (buffer.cells, buffer.heads, buffer.size)
    neox = _is_neox(table)
    return cells.graph.record(
        "rotate_cells", (cells, table, buffer), shape, buffer.dtype, neox=neox, block=buffer.rotated
    )


def copy_cells(sources: Tensor, targets: Tensor, buffer: KVBuffer) -> Tensor:
    """Copy the rows `sources` (n,) int32 of `buffer` to the rows `targets` (n,), bit for bit.

    No target is listed twice or is also a source. Returns the buffer's new content, as `store` does. Only
    backends with pages need this operation.
    """
    require(sources.shape == targets.shape, "copy_cells", sources.shape, targets.shape)
    shape: Shape = (buffer.cells, buffer.heads, buffer.size)
    return sources.graph.record("copy_cells", (sources, targets, buffer), shape, buffer.dtype)


class DistanceBias(Struct, frozen=True):
    """A bias that is added to the score of a key by its distance before or after the query.

    `table` (heads, 2 · reach + 1): the middle entry is for distance 0. Keys further away than `reach` take
    the first or the last entry (T5, Raffel et al. 2020; ALiBi, Press et al. 2022).
    `positions`: the positions of the queries.
    """

    table: npt.NDArray[np.float32]
    positions: Tensor


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: AnyMask,
    scale: float,
    sinks: Weight | None = None,
    softcap: float = 0.0,
    bias: DistanceBias | None = None,
) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) v over the cells that each token sees -> (n, heads, value size).

    q (n, heads, size); keys and values (cells, kv_heads, …) as `store` returns them. Consecutive groups of
    heads/kv_heads query heads share a key/value head (Ainslie et al. 2023). `sinks` (heads,) and `softcap`
    (0 for none): see `chaski.ml.nn.attention`.
    """
    require(len(q.shape) == 3 and q.shape[2] == keys.shape[2], "attention", q.shape, keys.shape)
    require(keys.shape[:2] == values.shape[:2], "attention", keys.shape, values.shape)
    heads, kv_heads = q.shape[1], keys.shape[1]
    fits = isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads == 0
    require(fits, "attention", q.shape, keys.shape)
    shape: Shape = (q.shape[0], heads, values.shape[2])
    require(sinks is None or sinks.shape == (heads,), "attention", q.shape, sinks and sinks.shape)
    op, seen, attributes = _told(mask)
    if bias is not None:
        require(sinks is None and bias.table.shape[:1] == (heads,), "attention", q.shape, bias.table.shape)
        if not isinstance(mask, Mask):
            raise UnsupportedError(
                "this backend's attention has no distance bias: load the model with another backend"
            )
        op, seen, attributes = f"{op}_by_distance", (*seen, bias.positions), {"table": bias.table}
    operands = (
        hadamard(q, _rotated(keys)),
        *(keys, values, *seen),
        *(() if sinks is None else (sinks,)),
    )
    y = q.graph.record(op, operands, shape, scale=scale, softcap=softcap, **attributes)
    return hadamard(y, _rotated(values))


def _told(mask: AnyMask) -> tuple[str, Sequence[Tensor], Mapping[str, Any]]:
    """Return the operation for a form of mask, its operands, and its attributes."""
    match mask:
        case Mask():
            return "attention", (mask.cells, mask.spans), {}
        case ChosenMask():
            choice = {"count": mask.count, "block": mask.block, "local": mask.local}
            return "chosen_attention", (mask.cells, mask.spans), choice
        case DenseMask():
            return "dense_attention", (mask.matrix,), {}
        case PagedMask():
            operands = (mask.block_table, mask.lengths, mask.query_starts, mask.bounds)
            return "paged_attention", operands, {"page": mask.page}


def choose_cells(
    q: Tensor,
    weights: Tensor | None,
    keys: Tensor,
    mask: AnyMask,
    *,
    count: int,
    scale: float,
    block: int = 1,
    local: int = 0,
) -> ChosenMask:
    """Return for each token the cells of the `count` blocks whose keys an indexer scores highest.

    q (n, heads, size), weights (n, heads), None for ones; keys (cells, 1, size) as `store` returns them. The
    score of a key is the sum over heads, in ascending order, of weight · max(scale · q k, 0). Of keys with
    equal scores, the lowest positions are chosen (DeepSeek-AI 2025, DeepSeek sparse attention). A block is
    `block` positions from a multiple of it on, and has the key of its last position. The positions after the
    last whole block are always chosen, and all blocks if a token sees no more than `count`.

    With `local` blocks (MiniMax 2026, MiniMax M3), a block's score is the highest of its keys, where products
    below 0 count as they are; the positions after the last whole block are one more block, and the last
    `local` blocks are chosen first.
    """
    require(q.shape[2] == keys.shape[2] and keys.shape[1] == 1, "choose_cells", q.shape, keys.shape)
    fits = weights is None or weights.shape == q.shape[:2]
    require(fits and count > 0 and block > 0, "choose_cells", q.shape, weights and weights.shape)
    require(0 <= local <= count, "choose_cells", local, count)
    if not isinstance(mask, Mask):
        raise UnsupportedError(
            "this backend cannot choose keys for sparse attention: load the model with another backend"
        )
    rotated = hadamard(q, _rotated(keys))
    operands = (rotated, keys, mask.cells, mask.spans, *(() if weights is None else (weights,)))
    shape: Shape = (q.shape[0], count * block + (0 if local else block - 1))
    choice = {"count": count, "block": block, "local": local}
    cells = q.graph.record("choose_cells", operands, shape, DType.I32, scale=scale, **choice)
    return ChosenMask(cells, mask.spans, count, block, local)


def entry_attention(
    q: Tensor,
    window: tuple[Tensor, Tensor, AnyMask],
    entries: tuple[Tensor, AnyMask],
    *,
    length: int,
    block: int,
    scale: float,
    sinks: Weight | None = None,
) -> Tensor:
    """Return `attention` of q (n, heads, size) to a window of tokens and to entries -> (n, heads, size).

    `window` has keys (cells, 1, size), which are also the values, and the mask of the last `length` tokens.
    An entry stands for a group of `block` tokens, and is its own value. `entries` has the storage of entries
    (cells, 1, size), each with the last token of its group, and a mask of tokens: the entries of all whole
    groups that a token sees, or those that `choose_cells` chose with the same `block`.
    """
    (keys, values, seen), (stored_entries, groups) = window, entries
    require(keys.shape[1:] == (1, q.shape[2]) == values.shape[1:], "entry_attention", q.shape, keys.shape)
    require(stored_entries.shape[1:] == keys.shape[1:], "entry_attention", keys.shape, stored_entries.shape)
    if not isinstance(seen, Mask) or not isinstance(groups, Mask | ChosenMask):
        raise UnsupportedError(
            "this backend cannot attend to entries of groups: load the model with another backend"
        )
    count = groups.count if isinstance(groups, ChosenMask) else 0
    fits = not isinstance(groups, ChosenMask) or (groups.block, groups.local) == (block, 0)
    require(fits, "entry_attention", block)
    block_of_heads = _rotated(keys)
    require(_rotated(stored_entries) == block_of_heads, "entry_attention", keys.dtype, stored_entries.dtype)
    rotated = hadamard(q, block_of_heads)
    operands = (rotated, keys, seen.cells, seen.spans, stored_entries, groups.cells, groups.spans)
    y = q.graph.record(
        "entry_attention",
        (*operands, *(() if sinks is None else (sinks,))),
        q.shape,
        scale=scale,
        length=length,
        block=block,
        count=count,
    )
    return hadamard(y, block_of_heads)


def short_conv(x: Tensor, filter: npt.NDArray[np.float32], states: KVBuffer, segments: Tensor) -> Tensor:
    """Convolve each sequence of the batch over time, with one filter per channel -> (n, channels).

    x (n, channels), filter (channels, taps): y of a token is the sum of filter[:, j] · x over the `taps`
    tokens that end with it. A row of `states` (taps - 1, channels) holds the inputs before the batch.
    `segments` (n, 5) int32 cover the batch in order. Each has five numbers: begin, end, the first token of
    the sequence in the batch, the row of `states` to read (the inputs before that token), and the row to
    write (the inputs before `end`). LFM2 uses this convolution.
    """
    channels, taps = filter.shape
    require(x.shape[1:] == (channels,), "short_conv", x.shape, filter.shape)
    require((states.heads, states.size) == (taps - 1, channels), "short_conv", filter.shape, states)
    require(segments.shape[1:] == (5,), "short_conv", segments.shape)
    filter = np.ascontiguousarray(filter, np.float32)
    return x.graph.record("short_conv", (x, segments, states), x.shape, filter=filter)
