"""How each operation of a graph becomes steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import UnsupportedError
from chaski.formats.quant import QuantType
from chaski.ml.arena import Buffer
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import (
    Constant,
    Count,
    Derived,
    Kernel,
    Lowering,
    Matrix,
    Sizes,
    Staged,
    is_quantized,
    matrix_of,
    storage_of,
    tasks_of,
    vector_of,
    width,
)
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Dim, KVBuffer, Tensor, Weight

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node"]

HOST_OPERATIONS = ("rope_table", "position_scale")
"""What the host computes from the inputs: its last bits are those of the host's mathematical library."""

_FLOATS = {QuantType.F32: "F32Weights", QuantType.F16: "F16Weights", QuantType.BF16: "BF16Weights"}
_SUPER = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
_WITH_MINS = (QuantType.Q4_1, QuantType.Q5_1)
_LANES = 16
_CHUNK = 256
_ROWS = 4  # query heads of a block of threads

# Shared memory that every device has for a block of threads.
_SHARED = 48 << 10


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


def linear(lowering: Lowering, node: Tensor, x: Tensor, _: Weight, bias: Weight | None = None) -> None:
    matrix = matrix_of(node)
    _product(lowering, node, x, matrix, matrix.rows, bias)


def first_outputs(lowering: Lowering, node: Tensor, x: Tensor, _: Weight) -> None:
    _product(lowering, node, x, matrix_of(node), node.attributes["count"], None)


def _product(
    lowering: Lowering, node: Tensor, x: Tensor, matrix: Matrix, rows: int, bias: Weight | None
) -> None:
    type = QuantType(matrix.type)
    dim, panels = lowering.dim(node), -(-rows // _LANES)
    if not is_quantized(matrix):
        program = Program("matmul_float", (*_format(type), ("CHASKI_TOKENS", 4)))

        def choose_float(sizes: Sizes) -> Kernel:
            return Kernel(program, "matmul_float", (-(-panels // 8), -(-sizes[dim] // 4), 1), 128)

        lowering.step(
            choose_float,
            *(matrix, rows, matrix.columns, x, lowering.count(node), lowering.new(node)),
            *(vector_of(bias), None),
        )
        return
    form = lowering.quantized(x)
    blocks = matrix.columns // type.block_size
    steps = 1 if type in _SUPER else type.block_size // 32
    floats = 1 if type in _SUPER else 4 if type in _WITH_MINS else 2

    def choose(sizes: Sizes) -> Kernel:
        tokens = min(8, sizes[dim])
        groups = 16 if blocks > 8 and steps * floats * tokens <= 48 else 8
        each = 4 * _LANES * groups * steps * floats * tokens  # bytes of one block of weights for each group
        at_once = max(1, min(4, _SHARED // each, -(-blocks // groups)))
        defines = (*_format(type), ("CHASKI_TOKENS", tokens), ("CHASKI_AT_ONCE", at_once))
        grid = (panels, -(-sizes[dim] // tokens), 1)
        return Kernel(Program("matmul", defines), "matmul", grid, _LANES * groups, each * at_once)

    lowering.step(
        choose,
        *(matrix, rows, matrix.columns, form.values, form.scales, form.sums, form.supers),
        *(lowering.count(node), lowering.new(node), vector_of(bias), None),
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


def rms_norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None = None) -> None:
    _norm(lowering, node, x, weight, None)


def layer_norm(
    lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None
) -> None:
    _norm(lowering, node, x, weight, bias)


def _norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None, bias: Weight | None) -> None:
    size = node.shape[-1]
    assert isinstance(size, int)
    heads, dim, op = width(node) // size, lowering.dim(node), node.op
    threads = 256 if size >= 1024 else 64

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("norms"), op, (sizes[dim] * heads, 1, 1), threads, 4 * (size + 1))

    lowering.step(
        choose,
        *(x, lowering.count(node), heads, size, vector_of(weight), vector_of(bias)),
        *(float(node.attributes["eps"]), lowering.new(node)),
    )


def elementwise(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    """Any operation of the table."""
    op = ELEMENTWISE[node.op]
    parameters = [float(node.attributes[name]) for name in op.parameters]
    lowering.for_each(
        "elementwise",
        f"elementwise_{op.name}",
        node,
        width(node),
        *(*operands, *(None,) * (2 - len(operands)), lowering.count(node), width(node)),
        *(*parameters, *(0.0,) * (2 - len(parameters)), lowering.new(node)),
    )


def scale_rows(lowering: Lowering, node: Tensor, x: Tensor, factors: Tensor) -> None:
    _scaled(lowering, "scale_rows", node, x, factors)


def by_vector(lowering: Lowering, node: Tensor, x: Tensor, vector: Weight) -> None:
    _scaled(lowering, node.op, node, x, vector_of(vector))


def _scaled(lowering: Lowering, kernel: str, node: Tensor, x: Tensor, factors: Any) -> None:
    arguments = (x, lowering.count(node), width(node), factors, lowering.new(node))
    lowering.for_each("rows", kernel, node, width(node), *arguments)


def rms(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.for_each("rows", "rms", node, 1, x, lowering.count(node), width(x), lowering.new(node))


def rows(lowering: Lowering, node: Tensor, x: Tensor, indices: Tensor) -> None:
    lowering.check(indices, 0, limit_of=x)
    arguments = (x, lowering.count(node), width(node), indices, lowering.new(node))
    lowering.for_each("rows", "rows", node, width(node), *arguments)


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
    y = lowering.new(node)
    for part, (first, stride) in zip(parts, node.attributes["places"], strict=True):
        lowering.for_each(
            "rows",
            "concat_columns",
            node,
            width(part),
            *(part, lowering.count(node), width(part), width(node), first, stride, y),
        )


def group_rows(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """`average_rows` and `space_to_depth`, which make one row of `count`."""
    arguments = (x, lowering.count(node), width(x), node.attributes["count"], lowering.new(node))
    lowering.for_each("rows", node.op, node, width(node), *arguments)


def top_k(lowering: Lowering, node: Tensor, x: Tensor, counts: Tensor) -> None:
    max_k = node.attributes["max_k"]
    lowering.check(counts, max_k + 1)
    dim, threads = lowering.dim(node), 1024 if width(x) >= 8192 else 128

    def choose(sizes: Sizes) -> Kernel:
        shared = 4 * (256 + 8 + max_k + threads)
        return Kernel(Program("top_k"), "top_k", (sizes[dim], 1, 1), threads, shared)

    lowering.step(choose, x, lowering.count(node), width(x), counts, max_k, lowering.new(node))


def rope(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor) -> None:
    heads, size, pairs = node.shape[1], node.shape[2], table.shape[2]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(pairs, int)
    lowering.for_each(
        "rows",
        "rope",
        node,
        heads * (size - pairs),
        *(x, lowering.count(node), heads, size, pairs, int(node.attributes["neox"]), table),
        lowering.new(node),
    )


def store(lowering: Lowering, node: Tensor, x: Tensor, cells: Tensor, buffer: KVBuffer) -> None:
    lowering.check(cells, buffer.cells)
    storage, dim = KVStorage.of(buffer), lowering.dim(x)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(storage.program, "store", (-(-sizes[dim] * buffer.heads // 8), 1, 1), 128)

    lowering.step(choose, x, lowering.count(x), cells, storage)


def stored(lowering: Lowering, node: Tensor, buffer: KVBuffer) -> None:
    """Do nothing: attention reads the buffer itself."""


def rotate_cells(lowering: Lowering, node: Tensor, cells: Tensor, table: Tensor, buffer: KVBuffer) -> None:
    lowering.check(cells, buffer.cells)
    storage, dim = KVStorage.of(buffer), lowering.dim(cells)

    def choose(sizes: Sizes) -> Kernel:
        grid = (-(-sizes[dim] * buffer.heads // 8), 1, 1)
        return Kernel(storage.program, "rotate_cells", grid, 128, 4 * 8 * buffer.size)

    neox = int(node.attributes["neox"])
    lowering.step(choose, cells, lowering.count(cells), table, table.shape[2], neox, storage)


def attention(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    spans: Tensor,
    sinks: Weight | None = None,
) -> None:
    _attention(lowering, node, q, keys, values, cells, spans, sinks=sinks)


def attention_by_distance(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    spans: Tensor,
    positions: Tensor,
) -> None:
    _attention(lowering, node, q, keys, values, cells, spans, positions=positions)


def _attention(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    spans: Tensor,
    *,
    sinks: Weight | None = None,
    positions: Tensor | None = None,
) -> None:
    """Few tokens have a block of threads for each chunk of what they see, many have one for all chunks."""
    key_buffer, value_buffer = storage_of(keys), storage_of(values)
    lowering.check(cells, key_buffer.cells)
    heads, dim = node.shape[1], lowering.dim(q)
    assert isinstance(heads, int)
    tiles = -(-(heads // key_buffer.heads) // _ROWS)
    tasks, starts, most = _tasks(lowering, spans, cells)
    program = Program(
        "attention",
        (
            ("CHASKI_KEYS", KVStorage.of(key_buffer).type_name),
            ("CHASKI_VALUES", KVStorage.of(value_buffer).type_name),
        ),
    )
    shared = _workspace(key_buffer.size, value_buffer.size)
    y = lowering.new(node)
    table = None if positions is None else node.attributes["table"]
    tasks_dim = _tasks_dim(spans)
    parts = Buffer(4 * lowering.dims[tasks_dim] * heads * (value_buffer.size + 2), 1)
    arguments = (
        *(q, lowering.count(q), y, KVStorage.of(key_buffer), KVStorage.of(value_buffer), cells, spans),
        *(vector_of(sinks), heads, float(node.attributes["scale"]), float(node.attributes["softcap"])),
        positions,
        None if table is None else Constant(np.ascontiguousarray(table, np.float32)),
        0 if table is None else table.shape[1] // 2,
        *(tasks, Count(tasks_dim), starts, parts),
    )

    def chunks(sizes: Sizes) -> Kernel | None:
        if sizes[dim] > most:
            return None
        grid = (sizes[tasks_dim], key_buffer.heads, tiles)
        return Kernel(program, "attention_chunk", grid, _CHUNK, shared)

    def join(sizes: Sizes) -> Kernel | None:
        if sizes[dim] > most:
            return None
        return Kernel(program, "attention_join", (sizes[dim], heads, 1), 64)

    def whole(sizes: Sizes) -> Kernel | None:
        if sizes[dim] <= most:
            return None
        return Kernel(program, "attention", (sizes[dim], key_buffer.heads, tiles), _CHUNK, shared)

    for choose in (chunks, join, whole):
        lowering.step(choose, *arguments)


def _tasks_dim(spans: Tensor) -> str:
    return f"tasks of {spans.attributes['name']}"


def _tasks(lowering: Lowering, spans: Tensor, cells: Tensor) -> tuple[Staged, Staged, int]:
    """The chunks of a mask, shared by all layers with it -> tasks, the first of each token, most tokens."""
    known = lowering.shared_parts.get(("tasks", spans))
    if known is not None:
        found: tuple[Staged, Staged, int] = known
        return found
    history, tokens = cells.shape[0], spans.shape[0]
    assert isinstance(history, Dim)
    assert isinstance(tokens, Dim)
    most = min(tokens.maximum, 32)
    dim, name, limit = _tasks_dim(spans), spans.attributes["name"], history.maximum
    lowering.dims[dim] = limit // _CHUNK + 2 * most
    tasks = Staged(lowering.dims[dim], 2, np.int32)
    starts = Staged(most + 1, 1, np.int32)

    def make(
        inputs: Mapping[str, npt.NDArray[Any]],
    ) -> tuple[Sequence[npt.NDArray[Any]], Mapping[str, int]]:
        given = inputs[name].reshape(-1, 3)
        if len(given) > most:
            return [np.empty((0, 2), np.int32), np.empty(0, np.int32)], {dim: 0}
        found, firsts = tasks_of(given, _CHUNK)
        return [found, firsts], {dim: len(found)}

    lowering.derived.append(Derived((tasks, starts), make))
    lowering.shared_parts["tasks", spans] = tasks, starts, most
    return tasks, starts, most


def _workspace(size: int, value_size: int) -> int:
    """Bytes of `Workspace` in attention.cu."""
    floats = (
        *(_ROWS * size, _ROWS * size // 2 + 1, _ROWS, _ROWS * _CHUNK, _ROWS * _CHUNK // 2, _ROWS * 4),
        *(4 * _ROWS * value_size, _CHUNK, _ROWS * value_size, 2 * _ROWS, 2 * _ROWS),
    )
    return 4 * sum((count + 3) // 4 * 4 for count in floats)


OPERATIONS: Mapping[str, Callable[..., None]] = dict.fromkeys(ELEMENTWISE, elementwise) | {
    "embedding": embedding,
    "linear": linear,
    "first_outputs": first_outputs,
    "product": product,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "scale_rows": scale_rows,
    "add_vector": by_vector,
    "multiply_vector": by_vector,
    "rms": rms,
    "rows": rows,
    "scatter": scatter,
    "slice": slice,
    "concat": concat,
    "average_rows": group_rows,
    "space_to_depth": group_rows,
    "top_k": top_k,
    "rope": rope,
    "store": store,
    "stored": stored,
    "rotate_cells": rotate_cells,
    "attention": attention,
    "attention_by_distance": attention_by_distance,
}
"""Each takes the lowering, the node and the node's operands."""


def lower_node(lowering: Lowering, node: Tensor) -> None:
    """Add the steps of a node. Raises UnsupportedError for an operation that has no kernel."""
    if node.op not in OPERATIONS:
        raise UnsupportedError(
            f"the cuda backend has no kernel for {node.op} yet: load the model with the cpu backend"
        )
    OPERATIONS[node.op](lowering, node, *node.operands)
