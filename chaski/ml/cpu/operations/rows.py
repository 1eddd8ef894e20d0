"""Operations that move or select data: inputs, reshapes, embeddings, rows, columns and elements."""

from __future__ import annotations

from chaski import _native
from chaski.ml.cpu.lowering import Buffer, Lowering
from chaski.ml.graph import Dim, Tensor, Weight, width

__all__ = [
    "concat",
    "embedding",
    "group_rows",
    "hash_ngrams",
    "input",
    "relative_dots",
    "reshape",
    "rooted_dots",
    "rows",
    "scatter",
    "slice",
    "token_numbers",
    "top_k",
]


def input(lowering: Lowering, node: Tensor) -> None:
    lowering.new(node)


def reshape(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """Add no step: `Lowering.buffer` returns the source's buffer."""


def embedding(lowering: Lowering, node: Tensor, ids: Tensor, table: Weight) -> None:
    if ids.op == "input":
        lowering.check(ids, table.shape[0])
    lowering.compute(node, {"ids": ids}, table=table.handle)


def token_numbers(lowering: Lowering, node: Tensor, tokens: Tensor) -> None:
    lowering.compute(node, {"tokens": tokens})


def hash_ngrams(lowering: Lowering, node: Tensor, tokens: Tensor, before: Tensor) -> None:
    lowering.compute(node, {"tokens": tokens, "before": before}, width=width(before), **node.attributes)


def rooted_dots(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    (_, heads, size) = a.shape
    lowering.compute(node, {"a": a, "b": b}, heads=heads, size=size, **node.attributes)


def relative_dots(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor, first: Tensor) -> None:
    _, heads, size = x.shape
    reads = {"x": x, "table": table, "first": first}
    lowering.compute(
        node, reads, table_dim=lowering.dim(table), heads=heads, size=size, count=node.attributes["count"]
    )


def rows(lowering: Lowering, node: Tensor, x: Tensor, indices: Tensor) -> None:
    lowering.check(indices, 0, limit_dim=lowering.dim(x))
    lowering.compute(node, {"x": x, "indices": indices}, source_dim=lowering.dim(x), width=width(node))


def slice(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    source_width, count = x.shape[-1], node.shape[-1]
    assert isinstance(source_width, int)
    assert isinstance(count, int)
    lowering.compute(
        node,
        {"x": x},
        groups=width(x) // source_width,
        source_width=source_width,
        first=node.attributes["first"],
        width=count,
    )


def concat(lowering: Lowering, node: Tensor, *parts: Tensor) -> None:
    y, target_width = lowering.new(node), node.shape[-1]
    assert isinstance(target_width, int)
    groups = width(node) // target_width
    for part, (first, stride) in zip(parts, node.attributes["places"], strict=True):
        lowering.call(
            "concat_columns",
            {"x": part},
            {"y": y},
            dim=lowering.dim(node),
            groups=groups,
            width=width(part) // groups,
            target_width=target_width,
            first=first,
            stride=stride,
        )


def scatter(lowering: Lowering, node: Tensor, x: Tensor, rows: Tensor, places: Tensor) -> None:
    lowering.check(places, 0, limit_dim=lowering.dim(x))
    y = lowering.reuse_or_new(node, x)
    if y is not lowering.buffer(x):
        lowering.call(
            "slice",
            {"x": x},
            {"y": y},
            dim=lowering.dim(node),
            groups=1,
            source_width=width(x),
            first=0,
            width=width(node),
        )
    lowering.call(
        "scatter",
        {"x": rows, "places": places},
        {"y": y},
        dim=lowering.dim(rows),
        target_dim=lowering.dim(node),
        width=width(node),
    )


def group_rows(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """`average_rows` and `space_to_depth`: the step has the operation's name and makes one row of `count`."""
    lowering.compute(node, {"x": x}, source_dim=lowering.dim(x), width=width(x), **node.attributes)


def top_k(lowering: Lowering, node: Tensor, x: Tensor, counts: Tensor) -> None:
    max_k = node.attributes["max_k"]
    lowering.check(counts, max_k + 1)
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    lanes = _native.num_lanes(width(x))
    maxima = Buffer(4 * leading.maximum * lanes, lanes)
    reads = {"x": x, "counts": counts}
    rows = {"dim": lowering.dim(node), "width": width(x)}
    lowering.call("lane_maxima", reads, {"maxima": maxima}, **rows)
    lowering.call("top_k", {**reads, "maxima": maxima}, {"y": lowering.new(node)}, max_k=max_k, **rows)
