"""Attention, rotary positions, and the storage that attention reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.arena import Buffer
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import (
    Constant,
    Count,
    Derived,
    Kernel,
    Lowering,
    Made,
    Sizes,
    storage_of,
    vector_of,
)
from chaski.ml.cuda.operations.seen import (
    APART,
    CHUNK,
    WHOLE,
    Seen,
    seen_in_history,
    seen_of_chosen,
    tasks_of_tokens,
    tiles_of_tokens,
)
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.graph import Dim, DType, KVBuffer, KVRole, Tensor, Weight, width
from chaski.ml.rounding import BLOCK, SUPER_BLOCK

__all__ = [
    *("attention", "attention_by_distance", "choose_cells", "chosen_attention", "entry_attention"),
    *("hadamard", "rope", "rotate_cells", "store", "stored"),
]

# Queries of a thread block that reads a whole history, without tensor instructions and with them: the largest
# number whose memory fits.
_ROWS, _TENSOR_ROWS = (16, 8, 4), (32, 16, 8)


def rope(lowering: Lowering, node: Tensor, x: Tensor, table: Tensor) -> None:
    """Defer the rope to the step that stores keys with the same angles, which also turns queries and keys."""
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


def hadamard(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    block, dim = node.attributes["block"], lowering.dim(node)
    blocks = width(node) // block
    program = Program("hadamard", (("CHASKI_BLOCK", block),))

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(program, "hadamard", (-(-sizes[dim] * blocks // 8), 1, 1), 128)

    lowering.step(choose, x, lowering.count(node), blocks, lowering.new(node))


def store(lowering: Lowering, node: Tensor, x: Tensor, cells: Tensor, buffer: KVBuffer) -> None:
    """Defer the storing of keys until their values are stored, which follows."""
    lowering.check(cells, buffer.cells)
    if buffer.role is KVRole.KEYS:
        lowering.wait_with(node, lambda: _store(lowering, node, None))
        return
    keys = next((each for each in lowering.waiting if each.op == "store" and each.operands[1] is cells), None)
    if keys is not None:
        lowering.taken(keys)
    _store(lowering, keys, node)


def _store(lowering: Lowering, keys: Tensor | None, values: Tensor | None) -> None:
    """Turn deferred queries and keys that have the same angles, and store keys and values."""
    stores = [node for node in (keys, values) if node is not None]
    cells, dim = stores[0].operands[1], lowering.dim(stores[0].operands[0])
    turned_keys = None if keys is None else _taken_rope(lowering, keys)
    turned_queries = None if turned_keys is None else _taken_queries(lowering, turned_keys)
    angles, pairs, neox = None, 0, 0
    if turned_keys is not None:
        angles = turned_keys.operands[1]
        assert isinstance(angles, Tensor)
        assert isinstance(angles.shape[2], int)
        pairs, neox = angles.shape[2], int(turned_keys.attributes["neox"])
    parts: list[Any] = [Count(dim), cells, angles, *_heads(turned_queries, turned_queries)]
    tails = [lowering.heads.get(node) for node in (turned_queries, *stores) if node is not None]
    known = [tail for tail in tails if tail is not None]
    are_known = len(known) == len(tails)
    for tail in known if are_known else ():
        tail.is_complete = True
    if turned_queries is None:
        parts.append(None)
    else:
        is_known = turned_queries in lowering.heads
        parts.append(lowering.place(turned_queries) if is_known else lowering.new(turned_queries))
    types, sizes_of_heads = [], []
    warps = -(-_number_of_heads(turned_queries) // 2)
    for node in (keys, values):
        if node is None:
            parts += [*_heads(None, None), None, 0, 0, 0, 0]
            types.append("DType::F32")
            sizes_of_heads.append(1)
            continue
        storage = KVStorage.of(storage_of(node))
        x = node.operands[0]
        assert isinstance(x, Tensor)
        parts += [*_heads(x, turned_keys if node is keys else None), storage]
        types.append(storage.type_name)
        sizes_of_heads.append(storage.size)
        warps += -(-storage.heads // 2)
    assert turned_queries is None or turned_queries.shape[2] == sizes_of_heads[0]
    program = Program(
        "storage",
        (
            ("CHASKI_KEYS", types[0]),
            ("CHASKI_VALUES", types[1]),
            ("CHASKI_SIZE", sizes_of_heads[0]),
            ("CHASKI_VALUE_SIZE", sizes_of_heads[1]),
            ("CHASKI_PAIRS", pairs),
            ("CHASKI_NEOX", neox),
        ),
    )

    def choose(sizes: Sizes) -> Kernel | None:
        if are_known and known[0].is_taken(sizes):
            return None
        return Kernel(program, "store", (sizes[dim], -(-warps // 2), 1), 64)

    lowering.step(choose, *parts)


def _taken_rope(lowering: Lowering, keys: Tensor) -> Tensor | None:
    """Return the rope of the keys if it is deferred and nothing else reads its result."""
    x = keys.operands[0]
    assert isinstance(x, Tensor)
    if x not in lowering.waiting or lowering.uses[x] > 1:
        return None
    lowering.taken(x)
    return x


def _taken_queries(lowering: Lowering, keys: Tensor) -> Tensor | None:
    """Return the only deferred rope with the same angles as the keys' rope, if there is exactly one."""
    found = [each for each in lowering.waiting if each.op == "rope" and each.operands[1] is keys.operands[1]]
    if len(found) != 1 or lowering.dim(found[0]) != lowering.dim(keys):
        return None
    lowering.taken(found[0])
    return found[0]


def _heads(x: Tensor | None, turned: Tensor | None) -> tuple[Any, ...]:
    """Return the fields of `Heads` in storage.cu; `turned`, if given, must still be turned."""
    return x if turned is None else turned.operands[0], _number_of_heads(x)


def _number_of_heads(x: Tensor | None) -> int:
    """Return the number of heads of a row."""
    if x is None:
        return 0
    heads = x.shape[1]
    assert isinstance(heads, int)
    return heads


def stored(lowering: Lowering, node: Tensor, buffer: KVBuffer) -> None:
    """Do nothing: attention reads the buffer itself."""


def rotate_cells(lowering: Lowering, node: Tensor, cells: Tensor, table: Tensor, buffer: KVBuffer) -> None:
    lowering.check(cells, buffer.cells)
    storage, dim = KVStorage.of(buffer), lowering.dim(cells)
    rotated = (("CHASKI_ROTATED", buffer.rotated),) if buffer.rotated > 1 else ()
    program = Program(storage.program.file, (*storage.program.defines, *rotated))

    def choose(sizes: Sizes) -> Kernel:
        grid = (-(-sizes[dim] * buffer.heads // 8), 1, 1)
        return Kernel(program, "rotate_cells", grid, 128, 4 * 8 * buffer.size)

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
    _attend(lowering, node, q, keys, values, cells, seen_in_history(cells, spans), sinks)


def attention_by_distance(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    q, keys, values, cells, spans, positions = operands
    seen = seen_in_history(cells, spans)
    _attend(lowering, node, q, keys, values, cells, seen, positions=positions)


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
    choice = {name: node.attributes[name] for name in ("count", "block", "local")}
    seen = seen_of_chosen(lowering, cells, spans, **choice)
    _attend(lowering, node, q, keys, values, cells, seen, sinks)


def _attend(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    seen: Seen,
    sinks: Weight | None = None,
    positions: Tensor | None = None,
) -> None:
    """Give few tokens a thread block per chunk of their history, and neighbours one for all chunks."""
    lowering.finish(keys, values)
    key_buffer, value_buffer = storage_of(keys), storage_of(values)
    lowering.check(cells, key_buffer.cells)
    heads, value_size = node.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    group = heads // key_buffer.heads
    types = {KVStorage.of(key_buffer).dtype, KVStorage.of(value_buffer).dtype}
    is_in_keys = value_buffer is key_buffer
    is_tensor = types == {DType.I16} and key_buffer.size % 32 == 0 and value_size % 16 == 0 and not is_in_keys
    sizes_of_heads = key_buffer.size, value_size
    room, is_staged = lowering.shared_memory, False
    if is_tensor:
        few = 8 if group <= 8 else 16
        many = next(rows for rows in _TENSOR_ROWS if _tensor_workspace(rows, *sizes_of_heads) <= room)
        is_staged = _tensor_workspace(few, *sizes_of_heads, is_split=True, is_staged=True) <= room
    else:
        many = next(rows for rows in _ROWS if _workspace(rows, *sizes_of_heads) <= room)
        few = min(many, 4 if group <= 4 else 8)
    tasks, starts = tasks_of_tokens(lowering, seen)
    neighbours = max(1, many // group) if seen.is_shared else 1
    tiles = tiles_of_tokens(lowering, seen, neighbours)
    y = lowering.new(node)
    rounded = _rounded_heads(lowering, node)
    form = lowering.quantized_with(node) if rounded else (None,) * 4
    joined, blocks_of_joined = _joined_heads(max(1, rounded), group, few)
    table = None if positions is None else node.attributes["table"]
    tasks_dim, tiles_dim = seen.tasks, seen.tiles(neighbours)
    parts = Buffer(4 * lowering.dims[tasks_dim] * heads * (value_size + 2), 1)
    arguments = (
        *(q, lowering.count(q), y, KVStorage.of(key_buffer), KVStorage.of(value_buffer), cells, seen.spans),
        *(vector_of(sinks), heads, float(node.attributes["scale"]), float(node.attributes["softcap"])),
        positions,
        None if table is None else Constant(np.ascontiguousarray(table, np.float32)),
        0 if table is None else table.shape[1] // 2,
        *(tasks, Count(tasks_dim), starts, parts, tiles, Count(tiles_dim), *form),
        lowering.zeros(seen.most_apart * heads // joined),
    )

    types_and_sizes = (
        ("CHASKI_KEYS", KVStorage.of(key_buffer).type_name),
        ("CHASKI_VALUES", KVStorage.of(value_buffer).type_name),
        ("CHASKI_SIZE", key_buffer.size),
        ("CHASKI_VALUE_SIZE", value_size),
        ("CHASKI_VALUES_IN_KEYS", int(is_in_keys)),
    )
    forms = seen.forms

    def kernel(name: str, rows: int, blocks: int) -> Kernel:
        is_split = name == "attention_chunk"
        defines: tuple[tuple[str, str | int], ...] = (
            *(*types_and_sizes, ("CHASKI_ROWS", rows), ("CHASKI_SPLIT", int(is_split))),
            ("CHASKI_SUPER_BLOCKS", int(is_split and lowering.is_super(node))),
        )
        if is_split:
            defines = (*defines, ("CHASKI_HEADS", joined), ("CHASKI_BLOCKS", blocks_of_joined))
        grid = (blocks, key_buffer.heads, -(-group // rows))
        joining = _join_workspace(joined, value_size) if is_split else 0
        if not is_tensor:
            shared = max(joining, _workspace(rows, *sizes_of_heads))
            return Kernel(Program("attention", defines), name, grid, CHUNK, shared)
        defines = (*defines, ("CHASKI_STAGED", int(is_split and is_staged)), ("CHASKI_BOUNDS", "256,2"))
        shared = _tensor_workspace(rows, *sizes_of_heads, is_split=is_split, is_staged=is_split and is_staged)
        return Kernel(Program("attention_i16", defines), name, grid, CHUNK, max(joining, shared))

    def chunks(sizes: Sizes) -> Kernel | None:
        return kernel("attention_chunk", few, sizes[tasks_dim]) if sizes[forms] == APART else None

    def whole(sizes: Sizes) -> Kernel | None:
        return kernel("attention", many, sizes[tiles_dim]) if sizes[forms] == WHOLE else None

    for choose in (chunks, whole):
        lowering.step(choose, *arguments)
    if rounded:
        lowering.round_rows(node, lambda sizes: sizes[forms] == WHOLE)


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
    """Give each token thread blocks that read its window, and then its entries."""
    lowering.finish(keys, entries)
    dim, (heads, size) = lowering.dim(q), node.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    lowering.check(cells, storage_of(keys).cells)
    lowering.check(groups, storage_of(entries).cells)
    y, none = lowering.new(node), (None,) * 4

    def history(content: Tensor, cells: Tensor, spans: Tensor) -> tuple[Any, ...]:
        storage = KVStorage.of(storage_of(content))
        scale = float(node.attributes["scale"])
        return (
            *(q, lowering.count(q), y, storage, storage, cells, spans, vector_of(sinks), heads, scale, 0.0),
            *(None, None, 0, None, None, None, None, None, None, *none, None),
        )

    rows = next(each for each in _ROWS if _workspace(each, size, size) <= lowering.shared_memory)
    type = KVStorage.of(storage_of(keys)).type_name
    program = Program(
        "entries",
        (
            *(("CHASKI_KEYS", type), ("CHASKI_VALUES", type), ("CHASKI_SIZE", size)),
            *(("CHASKI_VALUE_SIZE", size), ("CHASKI_VALUES_IN_KEYS", 1), ("CHASKI_ROWS", rows)),
            ("CHASKI_SUPER_BLOCKS", 0),
        ),
    )

    def choose(sizes: Sizes) -> Kernel:
        grid = (sizes[dim], -(-heads // rows), 1)
        return Kernel(program, node.op, grid, CHUNK, _workspace(rows, size, size))

    lowering.step(
        choose,
        *history(keys, cells, spans),
        *history(entries, groups, entry_spans),
        *(node.attributes["block"], node.attributes["count"]),
    )


def choose_cells(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    keys: Tensor,
    cells: Tensor,
    spans: Tensor,
    weights: Tensor | None = None,
) -> None:
    """Give each multiprocessor a thread block, which takes token after token."""
    lowering.finish(keys)
    buffer, dim = storage_of(keys), lowering.dim(q)
    lowering.check(cells, buffer.cells)
    count, block, local = (node.attributes[each] for each in ("count", "block", "local"))
    history, heads, name = cells.shape[0], q.shape[1], spans.attributes["name"]
    assert isinstance(history, Dim)
    storage = KVStorage.of(buffer)
    rows = next(each for each in _ROWS if _choice_workspace(each, buffer.size) <= lowering.shared_memory)
    program = Program(
        "choose",
        (
            *(("CHASKI_KEYS", storage.type_name), ("CHASKI_VALUES", storage.type_name)),
            *(("CHASKI_SIZE", buffer.size), ("CHASKI_VALUE_SIZE", buffer.size), ("CHASKI_VALUES_IN_KEYS", 0)),
            *(("CHASKI_ROWS", rows), ("CHASKI_SUPER_BLOCKS", 0)),
        ),
    )
    # With local blocks, the scores of all positions and then those of blocks.
    blocks = lowering.multiprocessors
    longest = history.maximum + history.maximum // block + 1 if local else history.maximum // block

    def make(inputs: Mapping[str, npt.NDArray[Any]], _: Sizes) -> Made:
        if np.any(inputs[name][:, 2] % block):
            raise ValueError(f"{name} has a span that starts inside of a block of {block} positions")
        return (), {}

    def choose(sizes: Sizes) -> Kernel:
        grid = (min(sizes[dim], blocks), 1, 1)
        return Kernel(program, "choose_cells", grid, CHUNK, _choice_workspace(rows, buffer.size))

    lowering.derived.append(Derived((), make))
    lowering.step(
        choose,
        *(q, weights, lowering.count(q), storage, cells, spans, heads, float(node.attributes["scale"])),
        *(count, block, local, Buffer(4 * blocks * longest, 1), longest, lowering.new(node)),
    )


def _rounded_heads(lowering: Lowering, node: Tensor) -> int:
    """Return how many heads of a token form whole blocks that products read; 0 if none do."""
    heads, size = node.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    block = SUPER_BLOCK if lowering.is_super(node) else BLOCK
    together = max(1, block // size)
    fits = together * size % block == 0 and heads % together == 0 and together * size <= 1024
    return together if fits and node in lowering.rounding.columns else 0


def _joined_heads(rounded: int, group: int, rows: int) -> tuple[int, int]:
    """Return how many heads a thread block joins, and how many thread blocks compute a chunk of these.

    They form whole blocks that products read, of `rounded` heads. A thread block computes up to `rows` heads
    of a group.
    """
    own, tiles = (rows, 1) if group % rows == 0 else (group, -(-group // rows))
    joined = math.lcm(rounded, own)
    return joined, joined // own * tiles


def _workspace(rows: int, size: int, value_size: int) -> int:
    """Return the bytes of `Workspace` in attention.cu, or slightly more."""
    of_row = 4 * (size + 16) + 4 + 4 * CHUNK + 2 * CHUNK + 4 * 4 + 8 * 4 + 2 * 4 + 5 * 4 * value_size
    return rows * of_row + 3 * 4 * CHUNK + 64


def _join_workspace(heads: int, value_size: int) -> int:
    """Return the bytes of `Joining` in join.h, or slightly more."""
    chunks = 128 if heads <= 8 else 1024 // heads if heads <= 64 else 16
    return 4 * heads * (value_size + 4 * chunks + 2) + 64


def _choice_workspace(rows: int, size: int) -> int:
    """Return the bytes of `Workspace` in choose.cu, or slightly more."""
    return rows * (4 * (size + 16) + 4) + 2 * 4 * CHUNK + 8 * 8 + 64


def _tensor_workspace(
    rows: int, size: int, value_size: int, *, is_split: bool = False, is_staged: bool = False
) -> int:
    """Return the bytes of `Workspace` in attention_i16.cu, or slightly more."""
    of_row = 2 * size + 64 + 4 * (CHUNK + 20) + 2 * 4 * 4 + 8 * 4
    weights = rows if is_split else 1
    staged = CHUNK if is_staged else 1
    sums = 1 if is_split else rows
    of_all = weights * (2 * CHUNK + 64) + staged * 2 * value_size + sums * 4 * (value_size + 4)
    return rows * of_row + of_all + 2 * 4 * CHUNK + 64
