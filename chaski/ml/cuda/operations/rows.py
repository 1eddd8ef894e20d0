"""Operations that move rows and columns, the largest elements of rows, and samples of these."""

from __future__ import annotations

from chaski.ml.arena import Buffer
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Derived, Kernel, Lowering, Made, Sizes
from chaski.ml.graph import Dim, Tensor, width

__all__ = ["concat", "group_rows", "relative_dots", "rows", "sample", "scatter", "slice", "top_k"]

_PART = 4096  # elements of a row whose largest ones a thread block finds


def rows(lowering: Lowering, node: Tensor, x: Tensor, indices: Tensor) -> None:
    lowering.check(indices, 0, limit_of=x)
    arguments = (x, lowering.count(node), width(node), indices, lowering.new(node))
    lowering.for_each("rows", "rows", node, width(node), *arguments)


def relative_dots(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor, first: Tensor) -> None:
    _, heads, size = x.shape
    count = node.attributes["count"]
    arguments = (
        *(x, lowering.count(node), heads, size, table, lowering.count(table)),
        *(first, count, lowering.new(node)),
    )
    lowering.for_each("relative_dots", "relative_dots", node, width(node), *arguments)


def scatter(lowering: Lowering, node: Tensor, x: Tensor, rows: Tensor, places: Tensor) -> None:
    lowering.check(places, 0, limit_of=x)
    y, columns = lowering.new(node), width(node)
    lowering.for_each("rows", "slice", node, columns, x, lowering.count(node), 1, columns, 0, columns, y)
    lowering.for_each("rows", "scatter", rows, columns, rows, lowering.count(rows), columns, places, y)


def slice(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    source, count = x.shape[-1], node.shape[-1]
    assert isinstance(source, int)
    assert isinstance(count, int)
    lowering.for_each(
        "rows",
        "slice",
        node,
        width(node),
        *(x, lowering.count(node), width(x) // source, source, node.attributes["first"], count),
        lowering.new(node),
    )


def concat(lowering: Lowering, node: Tensor, *parts: Tensor) -> None:
    y, target_width = lowering.new(node), node.shape[-1]
    assert isinstance(target_width, int)
    groups = width(node) // target_width
    for part, (first, stride) in zip(parts, node.attributes["places"], strict=True):
        columns = width(part) // groups
        lowering.for_each(
            "rows",
            "concat_columns",
            node,
            width(part),
            *(part, lowering.count(node), groups, columns, target_width, first, stride, y),
        )


def group_rows(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """Lower `average_rows` and `space_to_depth`, which combine `count` rows into one."""
    dim, source, count = lowering.dim(node), lowering.dim(x), node.attributes["count"]

    def fits(_: object, sizes: Sizes) -> Made:
        if sizes[dim] * count > sizes[source]:
            raise ValueError(f"{node.op}: {sizes[source]} rows are not {sizes[dim]} times {count}")
        return (), {}

    lowering.derived.append(Derived((), fits))
    arguments = (x, lowering.count(node), width(x), count, lowering.new(node))
    lowering.for_each("rows", node.op, node, width(node), *arguments)


def top_k(lowering: Lowering, node: Tensor, x: Tensor, counts: Tensor) -> None:
    max_k, columns, dim = node.attributes["max_k"], width(x), lowering.dim(node)
    lowering.check(counts, max_k + 1)
    parts = -(-columns // _PART)
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    found = Buffer(4 * leading.maximum * parts * 2 * max_k, 1)
    threads = 256
    shared = 8 * (threads // 2 + 2048 + 3)  # the keys of `Workspace` in top_k.cu

    def choose_parts(sizes: Sizes) -> Kernel:
        return Kernel(Program("top_k"), "top_k_of_parts", (sizes[dim], parts, 1), threads, shared)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("top_k"), "top_k", (sizes[dim], 1, 1), threads, shared)

    arguments = (x, lowering.count(node), columns, counts, max_k, _PART, parts, found, lowering.new(node))
    lowering.step(choose_parts, *arguments)
    lowering.step(choose, *arguments)


def sample(lowering: Lowering, node: Tensor, top: Tensor, counts: Tensor, chances: Tensor) -> None:
    max_k, size, dim = width(top) // 2, node.attributes["size"], lowering.dim(node)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("sample"), "sample", (sizes[dim], 1, 1), 32, 8 * size)

    arguments = (top, lowering.count(node), max_k, size, counts, chances, lowering.new(node))
    lowering.step(choose, *arguments)
