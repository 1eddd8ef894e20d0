"""Matrix products, and the sums that are fused with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.formats.quant import QuantType
from chaski.ml import ops
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import (
    Kernel,
    Lowering,
    Sizes,
    Tail,
    is_quantized,
    matrices_of,
    matrices_of_weight,
    matrix_of,
    vector_of,
)
from chaski.ml.cuda.operations.elements import elementwise
from chaski.ml.cuda.operations.heads import tail_of_heads
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Dim, Graph, Operand, Tensor, Weight, width
from chaski.ml.rewriting import rewritten
from chaski.ml.rounding import BLOCK, SUPER_BLOCK

__all__ = ["PRODUCTS", "SUPER_CHOICES", "add", "embedding", "product", "with_heads_apart"]

_FLOATS = {QuantType.F32: "F32Weights", QuantType.F16: "F16Weights", QuantType.BF16: "BF16Weights"}
_SUPER = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
_WITH_SHORT_SUBS = (QuantType.NVFP4, QuantType.IQ1_M, QuantType.IQ2_XS, QuantType.IQ2_S)  # of 16 elements
_WITH_SUMS = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q6_K)  # of 16 values, of types with super-blocks
_WITH_MINS = (QuantType.Q4_1, QuantType.Q5_1)
_LANES = 16
_MANY = 9  # from this many tokens on, `matmul_many` multiplies
_MANY_SUPER = 17  # the same for types with super-blocks, whose few tokens use tensor instructions too

_TAIL_COLUMNS = 256  # that a warp computes: kTailColumns of tail.h
SUPER_CHOICES = (
    *((8, 1, 64), (4, 2, 64), (8, 1, 32), (4, 2, 32), (4, 4, 32), (2, 4, 32)),
    (4, 1, 32),  # fits 64 KiB with all types
)
"""Thread blocks for super-blocks and many tokens: panels, super-blocks at a time, and tokens."""

_SHARED = 48 << 10  # shared memory that every device has for a thread block


def embedding(lowering: Lowering, node: Tensor, ids: Tensor, table: Weight) -> None:
    lowering.check(ids, table.shape[0])
    matrix = matrix_of(node)
    program = Program("embedding", _format(QuantType(matrix.type)))
    # Threads of a block, and its elements of a token: 32 per 16 threads of a quantized table, else one each.
    threads, dim = 256, lowering.dim(node)
    elements = 32 * threads // _LANES if is_quantized(matrix) else threads

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(program, "embedding", (sizes[dim], -(-matrix.columns // elements), 1), threads)

    lowering.step(choose, ids, lowering.count(node), matrix.columns, matrix, lowering.new(node))


def linear(lowering: Lowering, node: Tensor, *_: Operand) -> None:
    """Lower a product with one matrix, or with experts' matrices."""
    if node in lowering.sums:
        return  # the sum computes it
    if node not in lowering.rounding.products:
        _product(lowering, [_Product(node, node, None)])
    elif node in lowering.together:
        _product(lowering, [_Product(each, each, None) for each in lowering.together[node]])


def first_outputs(lowering: Lowering, node: Tensor, *_: Operand) -> None:
    _product(lowering, [_Product(node, node, None, node.attributes["count"])])


def with_heads_apart(graph: Graph) -> Graph:
    """Return the graph with the products of heads replaced by a product for each head."""

    def apart(x: Tensor, weight: Weight) -> Tensor:
        heads, rows, columns = weight.shape
        flat, parts = x.reshape(heads * columns), []
        for head, matrix in enumerate(matrices_of_weight(weight)):
            own = Weight((rows, columns), name=f"{weight.name}.{head}", handle=matrix)
            parts.append((ops.linear(ops.slice(flat, head * columns, columns), own), head * rows, 1))
        return ops.concat(parts).reshape(heads, rows)

    return rewritten(graph, "head_linear", apart)


PRODUCTS: Mapping[str, Callable[..., None]] = {
    "linear": linear,
    "first_outputs": first_outputs,
    "expert_linear": linear,
}
"""How each operation of `chaski.ml.products` is lowered, except that of heads."""


def add(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    for product, residual in ((b, a), (a, b)):
        if lowering.sums.get(product) is node:
            _product(lowering, [_Product(product, node, residual)])
            return
    elementwise(lowering, node, a, b)


class _Product(Struct, frozen=True):
    """A product, the node that receives its values, the added residual, and the number of matrix rows."""

    node: Tensor
    result: Tensor
    residual: Tensor | None
    count: int | None = None

    @property
    def rows(self) -> int:
        return matrix_of(self.node).rows if self.count is None else self.count

    def fields(self, lowering: Lowering) -> Sequence[Any]:
        _, bias, *_ = *(each for each in self.node.operands if isinstance(each, Weight)), None
        y = lowering.new(self.result)
        return matrix_of(self.node), self.rows, y, vector_of(bias), self.residual


class _Sharing(Struct, frozen=True):
    """The distribution of the rows of `tokens` tokens over matrices.

    Without experts, one matrix multiplies all rows. With experts, each token has `pairs` rows, and each
    expert multiplies some of them: one of each token at most, unless experts may repeat.
    """

    tokens: int
    experts: int = 0
    pairs: int = 1
    repeats: bool = False

    @property
    def most(self) -> int:
        """The largest number of rows in a group."""
        return self.tokens * self.pairs if self.repeats else self.tokens

    @property
    def groups(self) -> int:
        """The largest number of groups of rows, where one matrix multiplies each group."""
        return min(self.experts, self.tokens * self.pairs) if self.experts else 1

    @property
    def usual(self) -> int:
        """The usual number of rows in a group."""
        return -(-self.tokens * self.pairs // max(1, self.experts))

    @property
    def defines(self) -> tuple[tuple[str, str | int], ...]:
        """The macro that programs for experts are compiled with."""
        return (("CHASKI_EXPERTS", 1),) if self.experts else ()


def _product(lowering: Lowering, products: Sequence[_Product]) -> None:
    """Lower products of the same activations with matrices of one type."""
    node = products[0].node
    matrix, x, count = matrix_of(node), lowering.activations(node), lowering.count(node)
    sharing, experts = _experts(lowering, node)
    type = QuantType(matrix.type)
    panels = sum(-(-each.rows // _LANES) for each in products)
    if node not in lowering.rounding.products:

        def choose_float(sizes: Sizes) -> Kernel:
            shared = sharing(sizes)
            program = Program("matmul_float", (*_format(type), ("CHASKI_TOKENS", 4), *shared.defines))
            grid = (-(-panels // 8), -(-shared.most // 4), shared.groups)
            return Kernel(program, "matmul_float", grid, 128)

        (only,) = products
        lowering.step(choose_float, *only.fields(lowering), matrix.columns, x, count, *experts)
        return
    form = lowering.quantized(x)

    def is_few(sizes: Sizes) -> bool:
        shared = sharing(sizes)
        most, usual = (_MANY_SUPER, _MANY_SUPER) if type in _SUPER else (_MANY, _MANY // 2)
        return shared.tokens < most or shared.usual < usual

    def choose(sizes: Sizes) -> Kernel:
        if not is_few(sizes):
            rows = [each.rows for each in products]
            if type in _SUPER:
                return _super_blocks_of_many(type, matrix.columns, rows, sharing(sizes), lowering)
            return _many_tokens(type, rows, sharing(sizes), lowering)
        few = _super_blocks if type in _SUPER else _few_tokens
        kernel = few(type, matrix.columns, panels, sharing(sizes), lowering)
        defines = tail_defines if is_taken(sizes) else ()
        if normed and sharing(sizes).tokens == 1:
            kernel = _super_blocks(type, matrix.columns, panels, sharing(sizes), lowering, is_normed=True)
            is_told = "CHASKI_SUPER_BLOCKS" in dict(defines)
            defines = (
                *defines,
                *(() if is_told else (("CHASKI_SUPER_BLOCKS", 1),)),
                ("CHASKI_ROW", matrix.columns),
            )
        return replace(kernel, program=Program(kernel.program.file, (*kernel.program.defines, *defines)))

    parts = [field for each in products for field in each.fields(lowering)]
    none = (None, 0, None, None, None) * (3 - len(products))

    def is_fewer(sizes: Sizes) -> bool:
        # With more rows, each warp would round four of them one after the other at the end.
        return is_few(sizes) and sharing(sizes).usual <= 8

    tail_defines, tail, is_taken = _tail(lowering, products, is_fewer)
    normed = _norm_of(lowering, x)
    lowering.step(choose, *parts, *none, matrix.columns, *form.fields, count, *experts, *tail, *normed)


def _norm_of(lowering: Lowering, x: Tensor) -> Sequence[Any]:
    """Return the arguments of the norm of rows that products of a single token compute; empty if they do not.

    All readers of x must be products that have room for it.
    """
    if x.op != "rms_norm" or x in lowering.rounding.floats or not lowering.is_super(x):
        return ()
    room, columns = lowering.shared_memory, width(x)
    readers = [node for node in lowering.graph.nodes if x in node.operands]
    types = [QuantType(matrix_of(node).type) if node.op == "linear" else None for node in readers]
    if x.shape[-1] != columns or not all(
        type in _SUPER and _warps(type, columns, 1, room, is_normed=True) for type in types
    ):
        return ()
    lowering.normed.add(x)
    source, weight, *_ = (*x.operands, None)
    assert isinstance(weight, Weight | None)
    return source, vector_of(weight), float(x.attributes["eps"])


def _tail(
    lowering: Lowering, products: Sequence[_Product], is_fewer: Callable[[Sizes], bool]
) -> tuple[tuple[tuple[str, str | int], ...], Sequence[Any], Callable[[Sizes], bool]]:
    """Return the macros and arguments by which products of few tokens end with more, and when they do.

    They compute `_elementwise_of`, or turn and store the heads of a single token: with more, each warp would
    store several heads one after the other. Without either, macros and arguments are empty.
    """
    is_sum = any(each.residual for each in products)
    heads = None if is_sum else tail_of_heads(lowering, [each.result for each in products])
    if heads is not None:
        return heads
    node = _elementwise_of(lowering, products)
    if node is None:
        return (), (), is_fewer
    op, rows = ELEMENTWISE[node.op], products[0].rows
    tail = Tail(lowering.new_if_read(node), lowering.quantized_with(node), is_fewer)
    lowering.tails[node] = tail
    parameters = [float(node.attributes[name]) for name in op.parameters]
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    arrivals = lowering.zeros(leading.maximum * width(node) // rows * -(-rows // _TAIL_COLUMNS))
    defines = (
        *(("CHASKI_FORMULA", op.name), ("CHASKI_OPERANDS", len(node.operands))),
        ("CHASKI_SUPER_BLOCKS", int(lowering.is_super(node))),
    )
    return defines, (*parameters, *(0.0,) * (2 - len(parameters)), tail.y, *tail.rounded, arrivals), is_fewer


def _elementwise_of(lowering: Lowering, products: Sequence[_Product]) -> Tensor | None:
    """Return the elementwise node that alone reads these products, if there is one and it is rounded."""
    results = [each.result for each in products]
    if any(lowering.uses[each] > 1 for each in results) or any(each.residual for each in products):
        return None
    for node in lowering.graph.nodes:
        if node.op in ELEMENTWISE and list(node.operands) == results and node in lowering.rounding.columns:
            block = SUPER_BLOCK if lowering.is_super(node) else BLOCK
            return None if products[0].rows % block else node
    return None


def _experts(lowering: Lowering, node: Tensor) -> tuple[Callable[[Sizes], _Sharing], Sequence[Any]]:
    """Return the distribution of rows by sizes, and the arguments by which kernels distinguish experts."""
    dim = lowering.dim(node)
    if node.op != "expert_linear":
        return lambda sizes: _Sharing(sizes[dim]), ()
    matrices, groups = matrices_of(node), node.operands[1]
    assert isinstance(groups, Tensor)
    pairs = groups.shape[1]
    assert isinstance(pairs, int)
    stride = matrices[1].offset - matrices[0].offset if len(matrices) > 1 else 0
    arguments = (groups, pairs, int(node.operands[0] in lowering.rounding.dispatched), stride)
    repeats = groups.attributes.get("repeats", True)  # unknown for rows of another device
    return lambda sizes: _Sharing(sizes[dim], len(matrices), pairs, repeats), arguments


def _few_tokens(type: QuantType, columns: int, panels: int, sharing: _Sharing, lowering: Lowering) -> Kernel:
    """Return a kernel whose thread blocks go from panel to panel, with separate blocks per eight tokens."""
    own = min(8, sharing.most)
    is_small = type.block_size == 32
    steps = type.block_size // (16 if type in _WITH_SHORT_SUBS else 32)
    floats = 4 if type in _WITH_MINS else 2
    unit = 1 if not is_small else 4 if own <= 2 else 2

    def memory(groups: int) -> tuple[int, int]:
        """Return the bytes of weights, and of results."""
        return (
            2 * groups * (unit * _LANES * type.block_bytes + 64),
            2 * groups * unit * steps * own * floats * 4 * _LANES,
        )

    # If there are few panels, each gets many threads.
    is_short = panels > 3 * lowering.multiprocessors or columns < 16 * unit * type.block_size
    groups = 8 if is_short or own > 2 else 16
    while memory(groups)[1] > 2 * _SHARED or sum(memory(groups)) > lowering.shared_memory:
        groups //= 2
    shared = sum(memory(groups))
    threads = _LANES * (groups + max(2, own + own % 2))
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", own),
        ("CHASKI_GROUPS", groups),
        ("CHASKI_UNIT", unit),
        *sharing.defines,
    )
    if threads > 256:  # so that they fit the registers of a multiprocessor
        defines = (*defines, ("CHASKI_BOUNDS", f"{threads},1"))
    each = max(1, min(2048 // threads, lowering.shared_memory // shared))
    blocks = -(-lowering.multiprocessors * each // sharing.groups)
    grid = (min(panels, blocks), -(-sharing.most // own), sharing.groups)
    return Kernel(Program("matmul", defines), "matmul", grid, threads, shared, is_early=True)


def _slab_bytes(type: QuantType, columns: int, own: int, warps: int, *, is_normed: bool) -> int:
    """Return the bytes of `Slab` in matmul_super.cu."""
    turns = -(-columns // (type.block_size * warps))
    tokens, weights = _activated(type, own), _LANES * type.block_bytes + 64
    return 64 + warps * (
        2 * weights + (turns if is_normed else min(2, turns)) * tokens + 2 * own * 4 * _LANES
    )


def _warps(type: QuantType, columns: int, own: int, room: int, *, is_normed: bool) -> int:
    """Return the number of warps that multiply super-blocks by `own` tokens; 0 if none has room."""
    blocks = columns // type.block_size
    for warps in range(min(16, blocks), 0, -1):
        fewest = -(-blocks // -(-blocks // warps))  # that take the same number of turns
        # A row of floats, as in norms.h, lies in the memory of one stage of weights.
        row = 4 * (_LANES * 4 * (-(-columns // (4 * _LANES)) | 1) + 17) if is_normed else 0
        has_row = row <= fewest * (_LANES * type.block_bytes + 64)
        if has_row and _slab_bytes(type, columns, own, warps, is_normed=is_normed) <= room:
            return fewest
    return 0


def _super_blocks(
    type: QuantType,
    columns: int,
    panels: int,
    sharing: _Sharing,
    lowering: Lowering,
    *,
    is_normed: bool = False,
) -> Kernel:
    """Return a kernel for super-blocks whose thread blocks go from panel to panel, for up to 16 tokens each.

    Each warp multiplies one super-block of a panel at a time, by 1, 8 or 16 tokens. `is_normed`: it computes
    the norm of a single token.
    """
    own = 1 if sharing.most == 1 else 8 if sharing.usual <= 8 else 16
    warps = _warps(type, columns, own, lowering.shared_memory, is_normed=is_normed)
    turns = -(-columns // (type.block_size * warps))
    shared = _slab_bytes(type, columns, own, warps, is_normed=is_normed)
    threads = 32 * warps + _LANES * (2 if own == 1 else 8)
    each = max(1, min(2, 768 // threads, lowering.shared_memory // shared))
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", own),
        ("CHASKI_WARPS", warps),
        ("CHASKI_KEPT", turns if is_normed or turns == 1 else 0),
        ("CHASKI_BOUNDS", f"{threads},{each}"),
        *sharing.defines,
    )
    grid = (min(panels, -(-lowering.multiprocessors * each // sharing.groups)), -(-sharing.most // own))
    program = Program("matmul_super", defines)
    return Kernel(program, "matmul_super", (*grid, sharing.groups), threads, shared, is_early=True)


def _super_blocks_of_many(
    type: QuantType, columns: int, rows: Sequence[int], sharing: _Sharing, lowering: Lowering
) -> Kernel:
    """Return a kernel for super-blocks whose thread blocks take some panels and 32 or 64 tokens.

    Each warp has a panel. If there are few panels, warps share the super-blocks of one.
    """

    def memory(panels: int, splits: int, tokens: int) -> int:
        """Return the bytes of `Slab` in matmul_super_many.cu."""
        stage = panels * splits * _LANES * type.block_bytes + splits * _activated(type, tokens)
        floats = panels * splits * tokens * 4 * _LANES if splits > 1 else 4 * tokens
        return 4 * tokens + 2 * stage + floats

    def blocks(panels: int) -> int:
        return sum(-(-each // (_LANES * panels)) for each in rows)

    def cost(choice: tuple[int, int, int]) -> float:
        """Return the work of the busiest multiprocessor.

        The factors are of the instructions for one product, counted in machine code.
        """
        panels, splits, tokens = choice
        count = blocks(panels) * -(-sharing.usual // tokens) * sharing.groups
        each = panels * tokens * (1.0 if tokens == 64 else 1.25) * (1.0 if splits == 1 else 1.05)
        return -(-count // lowering.multiprocessors) * each

    fitting = (each for each in SUPER_CHOICES if memory(*each) <= lowering.shared_memory)
    chosen = panels, splits, tokens = min(fitting, key=cost)
    threads = 32 * panels * splits
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", tokens),
        ("CHASKI_PANELS", panels),
        ("CHASKI_SPLITS", splits),
        ("CHASKI_BOUNDS", f"{threads},{512 // threads}"),
        *sharing.defines,
    )
    grid = (blocks(panels), -(-sharing.most // tokens), sharing.groups)
    program = Program("matmul_super_many", defines)
    return Kernel(program, "matmul_super_many", grid, threads, memory(*chosen))


def _activated(type: QuantType, tokens: int) -> int:
    """Return the bytes of `Activated` in supers.h."""
    return tokens * (256 + 16 + 80) + (tokens if type in _WITH_SUMS else 1) * 32


def _many_tokens(type: QuantType, rows: Sequence[int], sharing: _Sharing, lowering: Lowering) -> Kernel:
    """Return a kernel whose thread blocks take as many tokens and panels as possible.

    They must fit in shared memory and leave a block for most multiprocessors. 16 warps share a block's work
    if there is enough of it.
    """

    def blocks(panels: int) -> int:
        return sum(-(-each // (_LANES * panels)) for each in rows)

    def memory(stages: int, panels: int, tokens: int) -> int:
        weights, activations, unpacked = _stretch(type, panels, tokens)
        return stages * weights + (stages - 1) * activations + 2 * unpacked + 4 * tokens + 64

    usual = max(8, min(128, 1 << (sharing.usual - 1).bit_length()))
    # With eight panels a warp has eight tiles. Their registers leave no room for scales per 16 elements.
    choices = (4, 2, 1) if type in _WITH_SHORT_SUBS else (8, 4, 2, 1)
    for own, panels in itertools.product((128, 64, 32, 16, 8), choices):
        busy = -(-sharing.usual // own) * sharing.groups * blocks(panels)
        is_enough = panels == 1 or 4 * busy >= 3 * lowering.multiprocessors
        if own <= usual and is_enough and memory(3, panels, own) <= lowering.shared_memory:
            break
    resident = min(2, -(-busy // lowering.multiprocessors))
    stages = next(
        (each for each in (6, 5, 4) if memory(each, panels, own) <= lowering.shared_memory // resident), 3
    )
    tiles = max(1, panels * own // 128)
    threads = 32 * panels * (own // (8 * tiles))
    defines = (
        *_format(type),
        ("CHASKI_TOKENS", own),
        ("CHASKI_PANELS", panels),
        ("CHASKI_TILES", tiles),
        ("CHASKI_STAGES", stages),
        ("CHASKI_BOUNDS", f"{threads},1"),
        *sharing.defines,
    )
    grid = (blocks(panels), -(-sharing.most // own), sharing.groups)
    return Kernel(Program("matmul_many", defines), "matmul_many", grid, threads, memory(stages, panels, own))


def _stretch(type: QuantType, panels: int, tokens: int) -> tuple[int, int, int]:
    """Return the bytes of `Weights`, `Activated` and `Unpacked` in matmul_many.cu, or slightly more."""
    subs = 16 if type in _WITH_SHORT_SUBS else 8
    weights = panels * ((256 // type.block_size * _LANES * type.block_bytes + 63) // 128 * 128 + 64)
    activations = tokens * (256 + (16 if subs == 16 else 32) + 32)
    activations += (tokens if type in _WITH_MINS else 1) * 32
    unpacked = panels * (16 * 256 + 4 * _LANES * subs)
    unpacked += (panels if type in _WITH_MINS else 1) * 4 * subs * _LANES
    return weights, activations, unpacked + 16


def _format(type: QuantType) -> tuple[tuple[str, str | int], ...]:
    """Return the macro that names the format of a matrix for a program."""
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
