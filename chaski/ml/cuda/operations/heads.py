"""Products of queries, keys and values that turn and store the heads of a single token themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from chaski.ml.cuda.lowering import HeadsTail, Lowering, Sizes, storage_of
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.graph import Dim, KVRole, Tensor, source_of

__all__ = ["tail_of_heads"]

_LANES = 16
_NO_STORAGE = (None, 0, 0, 0, 0)


class _Use(Struct, frozen=True, eq=False):
    """How the result of a product is used: the rope of queries, or the store of keys or values.

    `rope`: the rope of queries or keys, if they have one.
    """

    role: str
    node: Tensor
    rope: Tensor | None

    @property
    def heads(self) -> tuple[int, int]:
        """The number of heads and the elements of a head."""
        rows = self.node if self.role == "QUERY" else self.node.operands[0]
        assert isinstance(rows, Tensor)
        heads, size = rows.shape[1:]
        assert isinstance(heads, int)
        assert isinstance(size, int)
        return heads, size

    @property
    def storage(self) -> KVStorage:
        return KVStorage.of(storage_of(self.node))


def tail_of_heads(
    lowering: Lowering, results: Sequence[Tensor]
) -> tuple[tuple[tuple[str, str | int], ...], Sequence[Any], Callable[[Sizes], bool]] | None:
    """Return the macros and arguments by which products turn and store heads, and when they do.

    None if a result is something else, or if heads are not whole panels. Whether they do it depends on the
    other products of the same queries, keys and values: see `HeadsTail`.
    """
    uses = _uses(lowering, results)
    if uses is None:
        return None
    found = {use.role: use for use in uses}
    tail = HeadsTail(
        lowering.new(found["QUERY"].node) if "QUERY" in found else None, lowering.dim(results[0])
    )
    for use in uses:
        lowering.heads[use.node] = tail
    turned = [use.rope for use in uses if use.rope is not None]
    sizes = {use.role: use.heads[1] for use in uses}
    storages = [found[role].storage if role in found else None for role in ("KEY", "VALUE")]
    names = ["DType::F32" if each is None else each.type_name for each in storages]
    angles = turned[0].operands[1] if turned else None
    pairs = angles.shape[2] if isinstance(angles, Tensor) else 0
    assert isinstance(pairs, int)
    stores = [use.node for use in uses if use.role != "QUERY"]
    cells = stores[0].operands[1] if stores else None
    leading = results[0].shape[0]
    assert isinstance(leading, Dim)
    most = max(-(-use.heads[0] // 2) for use in uses)
    roles = [use.role for use in uses]
    defines = (
        *(("CHASKI_KEYS", names[0]), ("CHASKI_VALUES", names[1])),
        ("CHASKI_SIZE", sizes.get("KEY", sizes.get("QUERY", _LANES))),
        ("CHASKI_VALUE_SIZE", sizes.get("VALUE", _LANES)),
        ("CHASKI_KEY_PART", roles.index("KEY") if "KEY" in roles else -1),
        ("CHASKI_VALUE_PART", roles.index("VALUE") if "VALUE" in roles else -1),
        ("CHASKI_PAIRS", pairs),
        ("CHASKI_NEOX", int(turned[0].attributes["neox"]) if turned else 0),
    )
    arguments: list[Any] = [cells, angles, tail.queries]
    for each in storages:
        arguments += _NO_STORAGE if each is None else (each,)
    return defines, (*arguments, most, lowering.zeros(leading.maximum * 3 * most)), tail.is_taken


def _uses(lowering: Lowering, results: Sequence[Tensor]) -> Sequence[_Use] | None:
    """Return the uses of products' results; None unless one kernel can turn and store them."""
    readers = _readers(lowering)
    found = []
    for result in results:
        use = _use_of(lowering, result, readers)
        if use is None or use.heads[1] % _LANES:
            return None
        found.append(use)
    ropes = [use.rope for use in found if use.rope is not None]
    turns = {(source_of(rope.operands[1]), rope.attributes["neox"]) for rope in ropes}
    cells = {use.node.operands[1] for use in found if use.role != "QUERY"}
    sizes = {use.heads[1] for use in found if use.role != "VALUE"}
    has_angles = all(lowering.is_placed(angles) for angles, _ in turns)
    is_one = max(len(turns), len(cells), len(sizes)) <= 1 and len({use.role for use in found}) == len(found)
    return found if is_one and has_angles else None


def _use_of(lowering: Lowering, result: Tensor, readers: Mapping[Tensor, Tensor]) -> _Use | None:
    """Return the use of a product's result, which nothing else reads."""
    reader, rope = _reader(lowering, result, readers), None
    if reader is not None and reader.op == "rope":
        rope, after = reader, _reader(lowering, reader, readers)
        if after is None or after.op != "store":
            return _Use("QUERY", rope, rope)
        reader = after
    if reader is None or reader.op != "store":
        return None
    is_key = storage_of(reader).role is KVRole.KEYS
    return _Use("KEY" if is_key else "VALUE", reader, rope) if is_key or rope is None else None


def _reader(lowering: Lowering, node: Tensor, readers: Mapping[Tensor, Tensor]) -> Tensor | None:
    """Return the only node that reads another one's rows first, perhaps in another shape."""
    while lowering.uses[node] == 1 and node in readers:
        node = readers[node]
        if node.op != "reshape":
            return node
    return None


def _readers(lowering: Lowering) -> Mapping[Tensor, Tensor]:
    """Return the last node that reads each tensor as its first operand."""
    first = ((node.operands[0], node) for node in lowering.graph.nodes if node.operands)
    return {operand: node for operand, node in first if isinstance(operand, Tensor)}
