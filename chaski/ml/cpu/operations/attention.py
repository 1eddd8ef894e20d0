"""Attention, its rotations, and the key/value storage that it reads."""

from __future__ import annotations

from chaski import _native
from chaski.ml.cpu.lowering import Buffer, Lowering, offset
from chaski.ml.graph import Dim, KVBuffer, Tensor, Weight, width

__all__ = [
    "attention",
    "attention_by_distance",
    "choose_cells",
    "chosen_attention",
    "entry_attention",
    "hadamard",
    "rope",
    "rope_table",
    "rotate_cells",
    "store",
    "stored",
]

_SPLIT = 16  # tokens per thread, at most, whose attention several threads share


def rope_table(lowering: Lowering, node: Tensor, positions: Tensor) -> None:
    if len(positions.shape) == 1:
        lowering.check(positions, 2**31 - 1)
    lowering.call(
        "rope_table",
        {"positions": positions},
        {"table": lowering.new(node)},
        dim=lowering.dim(node),
        width=width(positions),
        frequencies=node.attributes["frequencies"].tolist(),
        axes=node.attributes["axes"].tolist(),
        magnitude=node.attributes["magnitude"],
        block=node.attributes["block"],
    )


def rope(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor) -> None:
    lowering.compute(
        node,
        {"x": x, "table": table},
        lowering.reuse_or_new(node, x),
        heads=node.shape[1],
        size=node.shape[2],
        pairs=table.shape[2],
        neox=node.attributes["neox"],
    )


def hadamard(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.compute(node, {"x": x}, lowering.reuse_or_new(node, x), width=width(node), **node.attributes)


def store(lowering: Lowering, node: Tensor, x: Tensor, cells: Tensor, target: KVBuffer) -> None:
    lowering.check(cells, target.cells)
    lowering.call("store", {"x": x, "cells": cells}, {"target": target}, dim=lowering.dim(x))


def stored(lowering: Lowering, node: Tensor, buffer: KVBuffer) -> None:
    """Do nothing: attention reads the buffer itself."""


def rotate_cells(lowering: Lowering, node: Tensor, cells: Tensor, table: Tensor, target: KVBuffer) -> None:
    lowering.check(cells, target.cells)
    lowering.call(
        "rotate_cells",
        {"cells": cells, "table": table, "target": target},
        {"target": target},
        dim=lowering.dim(cells),
        pairs=table.shape[2],
        **node.attributes,
    )


def attention(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    spans: Tensor,
    sinks: Weight | None = None,
    positions: Tensor | None = None,
) -> None:
    key_store, value_store = keys.operands[-1], values.operands[-1]
    assert isinstance(key_store, KVBuffer)
    assert isinstance(value_store, KVBuffer)
    heads, value_size = node.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    lowering.check(cells, key_store.cells)
    lowering.call(
        "attention",
        {
            "q": q,
            "keys": key_store,
            "values": value_store,
            "cells": cells,
            "spans": spans,
            "positions": positions,
        },
        {
            "y": lowering.new(node),
            "parts": _attention_parts(lowering, heads, key_store.heads, value_size, _longest(cells)),
        },
        dim=lowering.dim(q),
        history=lowering.dim(cells),
        heads=heads,
        value_size=value_size,
        scale=node.attributes["scale"],
        cap=node.attributes["softcap"],
        is_plain=lowering.is_plain,
        tiles=_tiles_of(lowering, q, cells, spans, heads // key_store.heads),
        weights=lowering.weights,
        sinks=offset(sinks),
        distances=[] if positions is None else node.attributes["table"].ravel().tolist(),
    )


def attention_by_distance(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    q, keys, values, cells, spans, positions = operands
    attention(lowering, node, q, keys, values, cells, spans, positions=positions)


def choose_cells(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    cells: Tensor,
    spans: Tensor,
    weights: Tensor | None = None,
) -> None:
    store = keys.operands[-1]
    assert isinstance(store, KVBuffer)
    lowering.check(cells, store.cells)
    parts = Buffer(4 * _longest(cells), 1) if lowering.threads > 1 else None
    lowering.call(
        "choose_cells",
        {"q": q, "weights": weights, "keys": store, "cells": cells, "spans": spans},
        {"y": lowering.new(node), "parts": parts},
        dim=lowering.dim(q),
        history=lowering.dim(cells),
        heads=q.shape[1],
        **node.attributes,
    )


def chosen_attention(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    spans: Tensor,
    sinks: Weight | None = None,
) -> None:
    key_store, value_store = keys.operands[-1], values.operands[-1]
    assert isinstance(key_store, KVBuffer)
    assert isinstance(value_store, KVBuffer)
    (_, heads, value_size), (_, width) = node.shape, cells.shape
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    assert isinstance(width, int)
    longest = width if lowering.is_plain else width * _SPLIT * lowering.threads
    lowering.call(
        "chosen_attention",
        {"q": q, "keys": key_store, "values": value_store, "chosen": cells},
        {
            "y": lowering.new(node),
            "parts": _attention_parts(lowering, heads, key_store.heads, value_size, longest),
        },
        dim=lowering.dim(q),
        longest=longest,
        count=width,
        heads=heads,
        value_size=value_size,
        scale=node.attributes["scale"],
        cap=node.attributes["softcap"],
        is_plain=lowering.is_plain,
        tiles=_chosen_tiles(lowering, node, q, spans, heads // key_store.heads),
        weights=lowering.weights,
        sinks=offset(sinks),
    )


def entry_attention(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    cells: Tensor,
    spans: Tensor,
    entries: Tensor,
    groups: Tensor,
    entry_spans: Tensor,
    sinks: Weight | None = None,
) -> None:
    key_store, entry_store = keys.operands[-1], entries.operands[-1]
    assert isinstance(key_store, KVBuffer)
    assert isinstance(entry_store, KVBuffer)
    lowering.check(cells, key_store.cells)
    if not node.attributes["count"]:
        lowering.check(groups, entry_store.cells)
    lowering.call(
        "entry_attention",
        {
            "q": q,
            "keys": key_store,
            "cells": cells,
            "spans": spans,
            "entry_keys": entry_store,
            "entry_cells": groups,
            "entry_spans": entry_spans,
        },
        {"y": lowering.new(node)},
        dim=lowering.dim(q),
        history=lowering.dim(cells),
        entries=lowering.dim(groups),
        heads=q.shape[1],
        scale=node.attributes["scale"],
        window=node.attributes["length"],
        count=node.attributes["count"],
        block=node.attributes["block"],
        weights=lowering.weights,
        sinks=offset(sinks),
    )


def _longest(cells: Tensor) -> int:
    """Return the largest number of entries of a history."""
    history = cells.shape[0]
    assert isinstance(history, Dim)
    return history.maximum


def _attention_parts(
    lowering: Lowering, heads: int, kv_heads: int, value_size: int, history: int
) -> Buffer | None:
    """Return memory for the chunks of a history that several threads share; None if they never share one."""
    size = _native.attention_parts_bytes(heads, kv_heads, value_size, history, lowering.threads)
    return None if size == 0 or lowering.is_plain else Buffer(size, 1)


def _tiles_of(lowering: Lowering, q: Tensor, cells: Tensor, spans: Tensor, group: int) -> int:
    """Return the number of the step that groups tokens; all layers with this mask and group share it."""
    if (spans, group) not in lowering.tiles:
        lowering.tiles[spans, group] = len(lowering.tiles)
        lowering.setup(
            "tiles",
            tokens=lowering.dim(q),
            history=lowering.dim(cells),
            spans=lowering.buffer(spans),
            group=group,
            is_plain=lowering.is_plain,
        )
    return lowering.tiles[spans, group]


def _chosen_tiles(lowering: Lowering, node: Tensor, q: Tensor, spans: Tensor, group: int) -> int:
    """Return the number of the same for cells that an indexer chose."""
    choice = {name: node.attributes[name] for name in ("count", "block", "local")}
    key = (spans, group, *choice.values())
    if key not in lowering.tiles:
        lowering.tiles[key] = len(lowering.tiles)
        lowering.setup(
            "chosen_tiles",
            tokens=lowering.dim(q),
            spans=lowering.buffer(spans),
            group=group,
            is_plain=lowering.is_plain,
            **choice,
        )
    return lowering.tiles[key]
