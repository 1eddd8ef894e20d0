"""Rows as they are: inputs, reshapes, embeddings, chosen rows, columns and elements."""

from __future__ import annotations

from chaski import _native
from chaski.ml.cpu.lowering import Buffer, Lowering, width
from chaski.ml.graph import Dim, Tensor, Weight

__all__ = [
    "average_rows",
    "columns",
    "embedding",
    "input",
    "join",
    "largest",
    "put_rows",
    "reshape",
    "rows",
    "unfold",
]


def input(lowering: Lowering, node: Tensor) -> None:
    lowering.new(node)


def reshape(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """Nothing to compute: `Lowering.buffer` gives the bytes that it reshapes."""


def embedding(lowering: Lowering, node: Tensor, ids: Tensor, table: Weight) -> None:
    lowering.check(ids, table.shape[0])
    y = lowering.new(node)
    lowering.call(
        "embedding",
        (lowering.buffer(ids),),
        (y,),
        dim=lowering.dim(node),
        table=table.handle,
        ids=lowering.buffer(ids),
        y=y,
    )


def rows(lowering: Lowering, node: Tensor, x: Tensor, indices: Tensor) -> None:
    lowering.check(indices, 0, limit_dim=lowering.dim(x))
    y = lowering.new(node)
    lowering.call(
        "rows",
        (lowering.buffer(x), lowering.buffer(indices)),
        (y,),
        dim=lowering.dim(node),
        source_dim=lowering.dim(x),
        width=width(node),
        x=lowering.buffer(x),
        indices=lowering.buffer(indices),
        y=y,
    )


def columns(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _copy(lowering, node, x, lowering.new(node), node.attributes["first"])


def join(lowering: Lowering, node: Tensor, *parts: Tensor) -> None:
    y = lowering.new(node)
    for part, (first, stride) in zip(parts, node.attributes["places"], strict=True):
        lowering.call(
            "put_columns",
            (lowering.buffer(part),),
            (y,),
            dim=lowering.dim(node),
            width=width(part),
            target_width=width(node),
            first=first,
            stride=stride,
            x=lowering.buffer(part),
            y=y,
        )


def put_rows(lowering: Lowering, node: Tensor, x: Tensor, rows: Tensor, places: Tensor) -> None:
    lowering.check(places, 0, limit_dim=lowering.dim(x))
    y = lowering.reuse_or_new(node, x)
    if y is not lowering.buffer(x):
        _copy(lowering, node, x, y, 0)
    lowering.call(
        "put_rows",
        (lowering.buffer(rows), lowering.buffer(places)),
        (y,),
        dim=lowering.dim(rows),
        target_dim=lowering.dim(node),
        width=width(node),
        x=lowering.buffer(rows),
        places=lowering.buffer(places),
        y=y,
    )


def average_rows(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _group_rows(lowering, node, x, "average_rows")


def unfold(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _group_rows(lowering, node, x, "unfold")


def _group_rows(lowering: Lowering, node: Tensor, x: Tensor, step: str) -> None:
    """Make one row of each `count`."""
    y = lowering.new(node)
    lowering.call(
        step,
        (lowering.buffer(x),),
        (y,),
        dim=lowering.dim(node),
        source_dim=lowering.dim(x),
        width=width(x),
        count=node.attributes["count"],
        x=lowering.buffer(x),
        y=y,
    )


def _copy(lowering: Lowering, node: Tensor, x: Tensor, y: Buffer, first: int) -> None:
    """The elements of each row from `first` on, as many as the node has."""
    lowering.call(
        "columns",
        (lowering.buffer(x),),
        (y,),
        dim=lowering.dim(node),
        source_width=width(x),
        first=first,
        width=width(node),
        x=lowering.buffer(x),
        y=y,
    )


def largest(lowering: Lowering, node: Tensor, x: Tensor, counts: Tensor) -> None:
    most = node.attributes["most"]
    lowering.check(counts, most + 1)
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    lanes = _native.num_lanes(width(x))
    maxima = Buffer(4 * leading.maximum * lanes, lanes)
    read = {"x": lowering.buffer(x), "counts": lowering.buffer(counts)}
    size = {"dim": lowering.dim(node), "width": width(x)}
    lowering.call("lane_maxima", tuple(read.values()), (maxima,), maxima=maxima, **read, **size)
    y = lowering.new(node)
    lowering.call("largest", (*read.values(), maxima), (y,), maxima=maxima, most=most, y=y, **read, **size)
