"""Values that travel as int8, since all that read them round them to that first, by the rule of numbers.

The rule is that of `native/include/matmul.h`. What arrives are not the numbers that were sent, but such as
are rounded to the same int8 and the same scales; whoever sends a row makes sure of it, or sends its floats.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski import _native
from chaski.errors import ClusterError
from chaski.formats.quant import QuantType
from chaski.ml.graph import Graph, Tensor, Weight

__all__ = ["RoundedRows", "blocks_of", "rounded_bytes"]

F32 = npt.NDArray[np.float32]

_PRODUCTS = ("linear", "first_outputs", "expert_linear")
_BLOCK, _SUPER_BLOCK = 32, 256
_AMAX, _SHIFTS = 4, 4


class RoundedRows(Struct, frozen=True):
    """Rows (rows, width) in blocks of 32 or super-blocks of 256: what they are rounded to, as bytes."""

    rows: int
    width: int
    block: int
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, values: F32, block: int) -> RoundedRows:
        """Round rows (n, width), whose width is a multiple of `block`."""
        rows, width = values.shape
        data = _native.rounded_rows(np.ascontiguousarray(values), block == _SUPER_BLOCK)
        return cls(rows, width, block, data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def floats(self) -> F32:
        """Return rows that are rounded alike. Raises ClusterError where the bytes are none of such rows."""
        try:
            return _native.unrounded_rows(self.data, self.rows, self.width, self.block == _SUPER_BLOCK)
        except ValueError as error:
            raise ClusterError(str(error)) from None


def rounded_bytes(rows: int, width: int, block: int) -> int:
    """The bytes of rows that are rounded again as they were, all of them."""
    each = block + _AMAX + (_SHIFTS if block == _SUPER_BLOCK else 0)
    return rows * (1 + width // block * each)


def blocks_of(graph: Graph, types: Mapping[Weight, QuantType]) -> Mapping[Tensor, int]:
    """Return the values that only products with quantized matrices read, and the blocks that they round to.

    types  those of all placed weights
    """
    read = {
        matrix: types[matrix]
        for node in graph.nodes
        if node.op in _PRODUCTS
        for matrix in node.operands[1:]
        if isinstance(matrix, Weight)
    }
    in_super_blocks = any(_native.wants_super_blocks(int(type)) for type in read.values())
    found: dict[Tensor, int] = {}
    # A value that is an output of the graph, or is read in another way, has no block: 0.
    for node in graph.outputs.values():
        found[node] = 0
    for node in reversed(graph.nodes):
        for index, operand in enumerate(node.operands):
            if isinstance(operand, Tensor):
                own = _block_read(node, index, found, types, in_super_blocks)
                found[operand] = own if found.get(operand, own) == own else 0
    return {node: block for node, block in found.items() if block}


def _block_read(
    node: Tensor,
    index: int,
    known: Mapping[Tensor, int],
    types: Mapping[Weight, QuantType],
    in_super_blocks: bool,
) -> int:
    """The blocks that a node rounds an operand to; 0 where it reads floats."""
    if node.op == "reshape":
        return known.get(node, 0)
    if node.op not in _PRODUCTS or index:
        return 0
    matrix = next(operand for operand in node.operands if isinstance(operand, Weight))
    if types[matrix].block_size == 1:
        return 0
    columns = matrix.shape[-1]
    return _SUPER_BLOCK if in_super_blocks and columns % _SUPER_BLOCK == 0 else _BLOCK
