"""Products of matrices, and the sums that they take in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chaski.formats.quant import QuantType
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import (
    Kernel,
    Lowering,
    Sizes,
    is_quantized,
    matrix_of,
    vector_of,
    width,
)
from chaski.ml.cuda.operations.elements import elementwise
from chaski.ml.graph import Operand, Tensor, Weight

__all__ = ["add", "embedding", "first_outputs", "linear", "product"]

_FLOATS = {QuantType.F32: "F32Weights", QuantType.F16: "F16Weights", QuantType.BF16: "BF16Weights"}
_SUPER = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
_WITH_MINS = (QuantType.Q4_1, QuantType.Q5_1)
_LANES = 16
_MANY = 32  # tokens from which on tensor instructions multiply

# Shared memory that every device has for a block of threads, and what a multiprocessor has for several.
_SHARED = 48 << 10
_MOST_SHARED = 220 << 10


def embedding(lowering: Lowering, node: Tensor, ids: Tensor, table: Weight) -> None:
    lowering.check(ids, table.shape[0])
    matrix = matrix_of(node)
    type = QuantType(matrix.type)
    elements = type.block_size if is_quantized(matrix) else 1
    program = Program("embedding", _format(type))
    dim, groups = lowering.dim(node), 8

    def choose(sizes: Sizes) -> Kernel:
        blocks = sizes[dim] * matrix.columns // elements
        return Kernel(program, "embedding", (-(-blocks // groups), 1, 1), _LANES * groups)

    lowering.step(choose, ids, lowering.count(node), matrix.columns, matrix, lowering.new(node))


def linear(lowering: Lowering, node: Tensor, *_: Operand) -> None:
    if node in lowering.sums:
        return  # the sum computes it
    if not is_quantized(matrix_of(node)):
        _product(lowering, [_Product(node, node, None)])
    elif node in lowering.together:
        _product(lowering, [_Product(each, each, None) for each in lowering.together[node]])


def first_outputs(lowering: Lowering, node: Tensor, *_: Operand) -> None:
    _product(lowering, [_Product(node, node, None, node.attributes["count"])])


def add(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    for product, residual in ((b, a), (a, b)):
        if lowering.sums.get(product) is node:
            _product(lowering, [_Product(product, node, residual)])
            return
    elementwise(lowering, node, a, b)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product, the node whose values it makes, a residual that is added, and how many rows it takes."""

    node: Tensor
    result: Tensor
    residual: Tensor | None
    count: int | None = None

    @property
    def rows(self) -> int:
        return matrix_of(self.node).rows if self.count is None else self.count

    def fields(self, lowering: Lowering) -> Sequence[Any]:
        bias = self.node.operands[2] if len(self.node.operands) > 2 else None
        y = lowering.new(self.result)
        return matrix_of(self.node), self.rows, y, vector_of(bias), self.residual


def _product(lowering: Lowering, products: Sequence[_Product]) -> None:
    """Products of the same activations with matrices of one type."""
    node = products[0].node
    matrix, x = matrix_of(node), node.operands[0]
    type, dim = QuantType(matrix.type), lowering.dim(node)
    panels = sum(-(-each.rows // _LANES) for each in products)
    if not is_quantized(matrix):
        program = Program("matmul_float", (*_format(type), ("CHASKI_TOKENS", 4)))

        def choose_float(sizes: Sizes) -> Kernel:
            return Kernel(program, "matmul_float", (-(-panels // 8), -(-sizes[dim] // 4), 1), 128)

        (only,) = products
        lowering.step(choose_float, *only.fields(lowering), matrix.columns, x, lowering.count(node))
        return
    form = lowering.quantized(x)

    def choose(sizes: Sizes) -> Kernel:
        tokens = sizes[dim]
        if tokens < _MANY:
            return _few_tokens(type, matrix.columns, panels, tokens, lowering.multiprocessors)
        return _many_tokens(type, [each.rows for each in products], tokens, lowering.multiprocessors)

    parts = [field for each in products for field in each.fields(lowering)]
    none = (None, 0, None, None, None) * (3 - len(products))
    lowering.step(choose, *parts, *none, matrix.columns, *form.fields, lowering.count(node))


def _few_tokens(type: QuantType, columns: int, panels: int, tokens: int, multiprocessors: int) -> Kernel:
    """Blocks of threads that go from panel to panel, and for each eight tokens others."""
    own = min(8, tokens)
    is_small = type.block_size == 32
    steps = 1 if type in _SUPER else type.block_size // 32
    floats = 1 if type in _SUPER else 4 if type in _WITH_MINS else 2
    unit = 1 if not is_small else 4 if own <= 2 else 2

    def memory(groups: int) -> tuple[int, int]:
        """Bytes of weights, and of what is found of them."""
        return (
            2 * groups * (unit * _LANES * type.block_bytes + 64),
            2 * groups * unit * steps * own * floats * 4 * _LANES,
        )

    # Few panels have many threads each.
    is_short = panels > 3 * multiprocessors or columns < 16 * unit * type.block_size
    groups = 8 if is_short or own > 2 else 16
    if memory(groups)[1] > 2 * _SHARED:
        groups = 4
    shared = sum(memory(groups))
    threads = _LANES * (groups + max(2, own + own % 2))
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", own),
        ("CHASKI_GROUPS", groups),
        ("CHASKI_UNIT", unit),
    )
    each = max(1, min(2048 // threads, _MOST_SHARED // shared))
    grid = (min(panels, multiprocessors * each), -(-tokens // own), 1)
    return Kernel(Program("matmul", defines), "matmul", grid, threads, shared)


def _many_tokens(type: QuantType, rows: Sequence[int], tokens: int, multiprocessors: int) -> Kernel:
    """As many panels for a block of threads as leave every multiprocessor some blocks."""
    own = min(128, 1 << (tokens - 1).bit_length())
    columns = -(-tokens // own)

    def blocks(panels: int) -> int:
        return sum(-(-each // (_LANES * panels)) for each in rows)

    panels = next((each for each in (4, 2) if blocks(each) * columns >= 2 * multiprocessors), 1)
    threads = 64 * panels  # two warps share the tokens
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", own),
        ("CHASKI_PANELS", panels),
        ("CHASKI_BOUNDS", f"{threads},{512 // threads}"),
    )
    subs = 16 if type in _SUPER and type is not QuantType.Q4_K else 8
    mins = 1 if type in _SUPER else subs
    of_panel = 64 * 24 * 4 + (subs + mins) * 4 * _LANES + 16 * _LANES + 2 * 4 * _LANES
    of_panel += 256 // type.block_size * _LANES * type.block_bytes
    of_token = 256 + 16 + 17 * 4 + 8 * 4 + 4 + 16 + 16 + 2 * 4 * (1 if type in _SUPER else 8)
    shared = panels * of_panel + own * of_token + 64
    return Kernel(
        Program("matmul_many", defines), "matmul_many", (blocks(panels), columns, 1), threads, shared
    )


def _format(type: QuantType) -> tuple[tuple[str, str | int], ...]:
    """The macro that names the format of a matrix for a program."""
    return (("CHASKI_WEIGHTS", _FLOATS[type]) if type in _FLOATS else ("CHASKI_FORMAT", type.name),)


def product(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight) -> None:
    columns = width(node)
    lowering.for_each(
        "rows",
        "product",
        node,
        columns,
        *(x, lowering.count(node), weight.shape[0], columns, vector_of(weight), lowering.new(node)),
    )
