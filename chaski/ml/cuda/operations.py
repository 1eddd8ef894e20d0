"""How each operation of a graph becomes steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    Double,
    Kernel,
    Lowering,
    Sizes,
    Staged,
    is_quantized,
    matrix_of,
    storage_of,
    tasks_of,
    tiles_of,
    vector_of,
    width,
)
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Dim, DType, KVBuffer, KVRole, Operand, Tensor, Weight

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node"]

HOST_OPERATIONS = ("rope_table", "position_scale")
"""What the host computes from the inputs: its last bits are those of the host's mathematical library."""

_FLOATS = {QuantType.F32: "F32Weights", QuantType.F16: "F16Weights", QuantType.BF16: "BF16Weights"}
_SUPER = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
_WITH_MINS = (QuantType.Q4_1, QuantType.Q5_1)
_LANES = 16
_CHUNK = 256
_MANY = 32  # tokens from which on tensor instructions multiply
_PART = 4096  # elements of a row of which a block of threads finds the largest
_ROWS = 16  # queries of a block of threads that goes through a whole history

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
    threads = min(1024, -(-size // 256) * 32)  # with eight elements each
    program = lowering.rounding("norms", width(node), ("CHASKI_ROUNDS", -(-size // (8 * threads))))
    # Rows of several heads are rounded by a step of their own.
    rounded = lowering.quantized_with(node) if heads == 1 else (None,) * 4
    y = lowering.new_if_read(node) if heads == 1 else lowering.new(node)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(program, op, (sizes[dim] * heads, 1, 1), threads, 4 * (size + 1))

    lowering.step(
        choose,
        *(x, lowering.count(node), heads, size, vector_of(weight), vector_of(bias)),
        *(float(node.attributes["eps"]), y, *rounded),
    )


def elementwise(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    """Any operation of the table."""
    op, columns, dim = ELEMENTWISE[node.op], width(node), lowering.dim(node)
    parameters = [float(node.attributes[name]) for name in op.parameters]
    program = lowering.rounding("elementwise", columns, ("CHASKI_FORMULA", op.name))
    rounded = lowering.quantized_with(node)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(program, "elementwise", (-(-sizes[dim] * columns // (8 * 128)), 1, 1), 128)

    lowering.step(
        choose,
        *(*operands, *(None,) * (2 - len(operands)), lowering.count(node), columns),
        *(*parameters, *(0.0,) * (2 - len(parameters)), lowering.new_if_read(node), *rounded),
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


def gaussian_top_k(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    multiplier = Double(float(np.float32(node.attributes["multiplier"])))
    arguments = (x, lowering.count(node), width(x), multiplier, lowering.new(node))
    lowering.for_each("rows", "gaussian_top_k", node, 1, *arguments)


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
    max_k, columns, dim = node.attributes["max_k"], width(x), lowering.dim(node)
    lowering.check(counts, max_k + 1)
    parts = -(-columns // _PART)
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    found = Buffer(4 * leading.maximum * parts * 2 * max_k, 1)
    threads = 256
    shared = 4 * (256 + 4 + max_k + threads)

    def choose_parts(sizes: Sizes) -> Kernel:
        return Kernel(Program("top_k"), "top_k_of_parts", (sizes[dim], parts, 1), threads, shared)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("top_k"), "top_k", (sizes[dim], 1, 1), threads, shared)

    arguments = (x, lowering.count(node), columns, counts, max_k, _PART, parts, found, lowering.new(node))
    lowering.step(choose_parts, *arguments)
    lowering.step(choose, *arguments)


def rope(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor) -> None:
    """Wait for the step that stores keys with the same angles: it turns queries and keys, too."""
    heads, size, pairs = node.shape[1], node.shape[2], table.shape[2]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(pairs, int)

    def emit() -> None:
        lowering.for_each(
            "rows",
            "rope",
            node,
            heads * (size - pairs),
            *(x, lowering.count(node), heads, size, pairs, int(node.attributes["neox"]), table),
            lowering.new(node),
        )

    lowering.wait_with(node, emit)


def store(lowering: Lowering, node: Tensor, x: Tensor, cells: Tensor, buffer: KVBuffer) -> None:
    """Keys wait for their values, which are stored next."""
    lowering.check(cells, buffer.cells)
    if buffer.role is KVRole.KEYS:
        lowering.wait_with(node, lambda: _store(lowering, node, None))
        return
    keys = next((each for each in lowering.waiting if each.op == "store" and each.operands[1] is cells), None)
    if keys is not None:
        lowering.taken(keys)
    _store(lowering, keys, node)


def _store(lowering: Lowering, keys: Tensor | None, values: Tensor | None) -> None:
    """Turn queries and keys that wait with the same angles, and store keys and values."""
    known = next(each for each in (keys, values) if each is not None)
    cells, dim = known.operands[1], lowering.dim(known.operands[0])
    table: Tensor | None = None
    queries: Tensor | None = None
    if keys is not None:
        x = keys.operands[0]
        assert isinstance(x, Tensor)
        if x in lowering.waiting and lowering.uses[x] == 1:
            lowering.taken(x)
            found = x.operands[1]
            assert isinstance(found, Tensor)
            table = found
            turned = [each for each in lowering.waiting if each.op == "rope" and each.operands[1] is table]
            if len(turned) == 1 and lowering.dim(turned[0]) == dim:
                queries = turned[0]
                lowering.taken(queries)
    neox = 0 if table is None else int(known.operands[0].attributes["neox"])  # type: ignore[union-attr]
    parts: list[Any] = [Count(dim), cells, table, 0 if table is None else table.shape[2], neox]
    parts += _heads(None if queries is None else queries.operands[0])
    parts.append(None if queries is None else lowering.new(queries))
    types = []
    heads = 0 if queries is None else int(queries.shape[1])  # type: ignore[arg-type]
    for node in (keys, values):
        if node is None:
            parts += [*_heads(None), None, 0, 0, 0, 0]
            types.append("DType::F32")
            continue
        x = node.operands[0]
        assert isinstance(x, Tensor)
        storage = KVStorage.of(storage_of(node))
        parts += [*_heads(x.operands[0] if node is keys and table is not None else x), storage]
        types.append(storage.type_name)
        heads += storage.heads
    longest = max(width(node.operands[0]) // node.operands[0].shape[1] for node in (keys, values) if node)  # type: ignore[union-attr, operator]
    each = -(-longest // _LANES)
    program = Program(
        "storage", (("CHASKI_KEYS", types[0]), ("CHASKI_VALUES", types[1]), ("CHASKI_EACH", each))
    )

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(program, "store", (-(-sizes[dim] * heads // 4), 1, 1), 64)

    lowering.step(choose, *parts)


def _heads(x: Operand | None) -> Sequence[Any]:
    """The fields of `Heads` in storage.cu."""
    if x is None:
        return None, 0, 0
    assert isinstance(x, Tensor)
    return x, x.shape[1], x.shape[2]


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
    lowering.finish(keys, values)
    key_buffer, value_buffer = storage_of(keys), storage_of(values)
    lowering.check(cells, key_buffer.cells)
    heads, dim = node.shape[1], lowering.dim(q)
    assert isinstance(heads, int)
    group = heads // key_buffer.heads
    tasks, starts, most = _tasks(lowering, spans, cells)
    neighbours = max(1, _ROWS // group)
    tiles = _tiles(lowering, spans, neighbours, most)
    y = lowering.new(node)
    table = None if positions is None else node.attributes["table"]
    tasks_dim, tiles_dim = _tasks_dim(spans), _tiles_dim(spans, neighbours)
    parts = Buffer(4 * lowering.dims[tasks_dim] * heads * (value_buffer.size + 2), 1)
    arguments = (
        *(q, lowering.count(q), y, KVStorage.of(key_buffer), KVStorage.of(value_buffer), cells, spans),
        *(vector_of(sinks), heads, float(node.attributes["scale"]), float(node.attributes["softcap"])),
        positions,
        None if table is None else Constant(np.ascontiguousarray(table, np.float32)),
        0 if table is None else table.shape[1] // 2,
        *(tasks, Count(tasks_dim), starts, parts, tiles, Count(tiles_dim)),
    )

    def kernel(name: str, rows: int, blocks: int) -> Kernel:
        program = Program(
            "attention",
            (
                ("CHASKI_KEYS", KVStorage.of(key_buffer).type_name),
                ("CHASKI_VALUES", KVStorage.of(value_buffer).type_name),
                ("CHASKI_SIZE", key_buffer.size),
                ("CHASKI_VALUE_SIZE", value_buffer.size),
                ("CHASKI_ROWS", rows),
                ("CHASKI_SPLIT", int(name != "attention")),
            ),
        )
        if name == "attention_join":
            return Kernel(program, name, (blocks, heads, 1), 128, 8 * lowering.dims[tasks_dim])
        grid = (blocks, key_buffer.heads, -(-group // rows))
        shared = _workspace(rows, key_buffer.size, value_buffer.size, is_tensor)
        return Kernel(program, name, grid, _CHUNK, shared)

    is_tensor = (
        {KVStorage.of(key_buffer).dtype, KVStorage.of(value_buffer).dtype} == {DType.I16}
        and key_buffer.size % 32 == 0
        and value_buffer.size % 16 == 0
    )
    few = _ROWS if is_tensor else 4 if group <= 4 else 8

    def chunks(sizes: Sizes) -> Kernel | None:
        return kernel("attention_chunk", few, sizes[tasks_dim]) if sizes[dim] <= most else None

    def join(sizes: Sizes) -> Kernel | None:
        return kernel("attention_join", few, sizes[dim]) if sizes[dim] <= most else None

    def whole(sizes: Sizes) -> Kernel | None:
        return kernel("attention", _ROWS, sizes[tiles_dim]) if sizes[dim] > most else None

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


def _tiles_dim(spans: Tensor, neighbours: int) -> str:
    return f"tiles of {spans.attributes['name']} by {neighbours}"


def _tiles(lowering: Lowering, spans: Tensor, neighbours: int, few: int) -> Staged:
    """Up to so many neighbours of a sequence together, shared by all layers with this mask."""
    dim, tokens = _tiles_dim(spans, neighbours), spans.shape[0]
    known = lowering.shared_parts.get((dim, spans))
    if known is not None:
        found: Staged = known
        return found
    assert isinstance(tokens, Dim)
    name = spans.attributes["name"]
    lowering.dims[dim] = tokens.maximum
    tiles = Staged(tokens.maximum, 2, np.int32)

    def make(
        inputs: Mapping[str, npt.NDArray[Any]],
    ) -> tuple[Sequence[npt.NDArray[Any]], Mapping[str, int]]:
        given = inputs[name].reshape(-1, 3)
        made = np.empty((0, 2), np.int32) if len(given) <= few else tiles_of(given, neighbours)
        return [made], {dim: len(made)}

    lowering.derived.append(Derived((tiles,), make))
    lowering.shared_parts[dim, spans] = tiles
    return tiles


def _workspace(rows: int, size: int, value_size: int, is_tensor: bool) -> int:
    """Bytes of `Workspace` in attention.cu, or a few more."""
    of_row = 4 * (size + 16) + 4 + 4 * _CHUNK + 2 * (_CHUNK + 16) + 4 * 4 + 8 * 4 + 2 * 4
    sums = 2 if is_tensor else 5 * rows
    return rows * of_row + sums * 4 * value_size + 3 * 4 * _CHUNK + 64


OPERATIONS: Mapping[str, Callable[..., None]] = dict.fromkeys(ELEMENTWISE, elementwise) | {
    "add": add,
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
    "gaussian_top_k": gaussian_top_k,
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
