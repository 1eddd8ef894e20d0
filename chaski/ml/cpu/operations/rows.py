"""Rows as they are: inputs, reshapes, embeddings, chosen rows and columns."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering, width
from chaski.ml.graph import Tensor, Weight

__all__ = ["columns", "embedding", "input", "reshape", "rows"]


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
    y = lowering.new(node)
    lowering.call(
        "columns",
        (lowering.buffer(x),),
        (y,),
        dim=lowering.dim(node),
        source_width=width(x),
        first=node.attributes["first"],
        width=width(node),
        x=lowering.buffer(x),
        y=y,
    )
