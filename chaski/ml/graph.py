"""The graph that a model records. It consists of symbolic tensors and computes nothing.

A model's Python code runs once. Each of its operations becomes a `Tensor` that stores the operation, its
operands and its shape. A backend compiles the list of tensors into a plan and runs the plan for every batch.
Shapes are written outermost first, as in NumPy. A dimension is an `int`, or a `Dim` if its size is known only
when the plan runs, such as the number of tokens in a batch. A `Dim` has a maximum, for which the backend
reserves memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.formats.quant import QuantType

__all__ = [
    "AdapterTable",
    "Adapters",
    "AnyMask",
    "ChosenMask",
    "DType",
    "DenseMask",
    "Dim",
    "Graph",
    "KVBuffer",
    "KVRole",
    "Mask",
    "Operand",
    "PagedMask",
    "Rope",
    "Shape",
    "Tensor",
    "Weight",
    "require",
    "source_of",
    "width",
]


class DType(Enum):
    """Element types of activations and of key/value storage (weights keep their file's type).

    I16 and the Q types are for storage only. I16: integers of 16 bits with a scale for each head of a token;
    Q8_0 and Q4_0: ggml's blocks of 32 elements, along each head; Q3_0: such blocks with levels of three bits.
    Heads in three and four bits are stored after a rotation, see `KVBuffer`.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I16 = "i16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q3_0 = "q3_0"
    I32 = "i32"

    @property
    def is_in_blocks(self) -> bool:
        """True for stored elements that share a scale with their neighbours in a head."""
        return self in (DType.Q8_0, DType.Q4_0, DType.Q3_0)


class Dim(Struct, frozen=True):
    """A dimension whose size is given when the plan runs, never above `maximum`."""

    name: str
    maximum: int


Shape = tuple["int | Dim", ...]


class Tensor(Struct, frozen=True, eq=False):
    """A value in a graph. `Graph` and the functions of `chaski.ml.ops` create tensors; models do not.

    `dtype` is nominal: it is the type that the model means. A backend may compute in another type. For
    example, the cpu backend rounds to int8 before products with quantized matrices.
    """

    graph: Graph
    op: str
    operands: tuple[Operand, ...]
    shape: Shape
    dtype: DType
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        return f"Tensor(op={self.op!r}, shape={self.shape}, dtype={self.dtype}, attributes={self.attributes})"

    def __add__(self, other: Tensor) -> Tensor:
        if self.shape != other.shape:
            raise ValueError(f"add: shapes differ: {self.shape} and {other.shape}")
        return self.graph.record("add", (self, other), self.shape)

    def __mul__(self, factor: float) -> Tensor:
        return self.graph.record("scale", (self,), self.shape, factor=factor)

    def reshape(self, *shape: int) -> Tensor:
        """Return the same values with other trailing dimensions; the leading (token) dimension stays."""
        if int(np.prod(shape)) != int(np.prod([d for d in self.shape[1:] if isinstance(d, int)])):
            raise ValueError(f"reshape: {self.shape} cannot become (…, {shape})")
        return self.graph.record("reshape", (self,), (self.shape[0], *shape), self.dtype)

    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows of the leading dimension that `indices` (int32) lists, in that order."""
        return self.graph.record("rows", (self, indices), (indices.shape[0], *self.shape[1:]), self.dtype)


class Weight(Struct, eq=False):
    """A parameter of a model, declared with its shape and later bound to the file's tensor by name.

    `shape` is (rows, columns) for matrices: `linear` maps `columns` inputs to `rows` outputs.
    `plain` matrices are kept as rows of float32, for operations other than matrix products.
    `stored` is an alternative shape in files, with the same elements in the same order.
    `host` weights stay readable from Python (`array`, float32) and are not given to the backend.
    `split` is the axis along which a backend may cut it, compute the parts separately and join the results
    with the same bits: outputs of a matrix (whole heads for attention), experts, or rows of a table.
    None means that every device needs all of it.
    `constant` is the value of all elements of a vector that the model needs and files do not contain.
    `handle` is the backend's own form of the data, and `type` the type of the tensor in the file.
    `scale` is a weight (1,) that multiplies all products with this one, or one (experts,) of numbers for the
    matrices of a stack. Files may have it next to a matrix.
    """

    shape: tuple[int, ...]
    optional: bool = False
    host: bool = False
    plain: bool = False
    stored: tuple[int, ...] | None = None
    split: int | None = None
    constant: float | None = None
    name: str = ""
    handle: object | None = None
    type: QuantType | None = None
    array: npt.NDArray[np.float32] | None = None
    scale: Weight | None = None

    def scaled(self, y: Tensor) -> Tensor:
        """Multiply a product with this weight, or rows of it, by its scale."""
        if self.scale is None or self.scale.array is None:
            return y
        return y * float(self.scale.array[0])

    @property
    def is_present(self) -> bool:
        """True if the file contains the weight. After binding, only optional weights can be absent."""
        return self.handle is not None or self.array is not None

    @property
    def elements(self) -> npt.NDArray[np.float32]:
        """The array of a host weight that is present."""
        assert self.array is not None, f"{self.name} is a host weight of the file"
        return self.array


class KVRole(Enum):
    """Content of a buffer: a backend may lay keys and values out differently."""

    KEYS = "keys"
    VALUES = "values"
    STATES = "states"


class KVBuffer(Struct, frozen=True, eq=False):
    """Storage of one layer's keys or values: `cells` rows of (`heads`, `size`), owned by a backend.

    Keys and values in few bits are stored after a rotation, which spreads the elements that stand out: see
    `ops.hadamard`. Operations that store and read them rotate (`chaski.ml.cached_ops`).
    """

    role: KVRole
    cells: int
    heads: int
    size: int
    dtype: DType
    handle: object

    @property
    def rotated(self) -> int:
        """The number of consecutive elements that are rotated together; 1 if heads are stored as they are.

        It is the largest power of two that divides the size of a head.
        """
        return self.size & -self.size if self.dtype in (DType.Q4_0, DType.Q3_0) else 1


class Mask(Struct, frozen=True):
    """The cells that each token of a batch sees, as lists, so that the cost depends on visible cells only.

    `cells` (any,) int32 lists the cells of one sequence after the other, in order of position. `spans` (n, 3)
    int32 contains (begin, end, first): token i sees cells[begin:end], and cells[begin] holds position
    `first`. Kernels cut the history at positions that are multiples of their chunk length, so a result does
    not depend on where a list begins.
    """

    cells: Tensor
    spans: Tensor


class DenseMask(Struct, frozen=True):
    """The mask as a matrix (n, cells) of floats: 0 if a token sees a cell, and minus infinity otherwise.

    It is for backends that require it, see `CacheConfig`; none of chaski's own does.
    """

    matrix: Tensor


class PagedMask(Struct, frozen=True):
    """The mask by pages of `page` cells, for storage in which position p is at place p % page of a page.

    The batch contains the tokens of one sequence after the other. `block_table` (sequences, blocks) int32:
    position p of a sequence is in cell block_table[…, p // page] · page + p % page. `lengths` (sequences,)
    int32 are the numbers of tokens of each sequence, including those of the batch. `query_starts`
    (sequences,) int32 are the indices of their first tokens in the batch. `bounds` (n, 2) int32: token i sees
    the positions from bounds[i, 0] to bounds[i, 1]. Table entries for pages that no token sees are undefined.

    It is for backends that require it, see `CacheConfig`; none of chaski's own does.
    """

    block_table: Tensor
    lengths: Tensor
    query_starts: Tensor
    bounds: Tensor
    page: int


class ChosenMask(Struct, frozen=True):
    """The cells that an indexer chose for each token of a batch, see `choose_cells`.

    `cells` (n, width) int32 contains the chosen cells of token i in its row, in order of position: up to
    `count` blocks of `block` positions, and fewer than `block` after the last whole block that the token sees
    by its span of `spans`, as in `Mask`; with `local` blocks, the last ones may be a block. The rest of the
    row is unused.
    """

    cells: Tensor
    spans: Tensor
    count: int
    block: int
    local: int


AnyMask = Mask | DenseMask | PagedMask | ChosenMask


class Rope(Struct, frozen=True, eq=False):
    """A rotary embedding of heads (Su et al. 2021), which turns pairs of elements by position · frequency.

    `frequencies` (pairs,) float32 are in radians per position. The pairs are (2j, 2j + 1), or with
    `neox` (j, j + pairs), as in GPT-NeoX. Elements after the pairs do not change. `magnitude` multiplies the
    turned elements (for YaRN, see `chaski.ml.nn.rope`).
    `axes` contains, for each pair, the number of the coordinate that turns it if tokens have several
    coordinates (m-rope, Wang et al. 2024); None if tokens have one position.
    """

    frequencies: npt.NDArray[np.float32]
    neox: bool = False
    magnitude: float = 1.0
    axes: tuple[int, ...] | None = None


class AdapterTable(Struct, frozen=True, eq=False):
    """The adapters that a backend holds, by slot and by the number of the matrix that they change.

    `max_width`: the maximum sum of the ranks of a row's adapters, each rounded up to 16.
    """

    slots: int
    matrices: int
    max_width: int
    handle: object


class Adapters(Struct, eq=False):
    """The LoRA adapters that change the products of a graph while it is recorded.

    lists    for each leading dimension, by name: the number of each row's list of adapters (n,), or -1
    uses     (uses, 3) all lists, concatenated: number of the list, slot, and bits of a float32 scale
    weights  the matrices that can be changed
    numbers  the matrices among them that the graph multiplies by, with their numbers in the table
    """

    table: AdapterTable
    lists: Mapping[str, Tensor]
    uses: Tensor
    weights: frozenset[Weight]
    numbers: dict[Weight, int] = field(default_factory=dict)

    def applied(self, y: Tensor, x: Tensor, weight: Weight) -> Tensor:
        """Return y = x · weightᵀ with the changes of each row's adapters."""
        leading = x.shape[0]
        lists = self.lists.get(leading.name) if isinstance(leading, Dim) else None
        if lists is None or weight not in self.weights:
            return y
        number = self.numbers.setdefault(weight, len(self.numbers))
        operands = (y, x, lists, self.uses, self.table)
        return y.graph.record("adapt", operands, y.shape, matrix=number)


Operand = Tensor | Weight | KVBuffer | AdapterTable


class Graph(Struct, eq=False):
    """The recorded operations of one forward pass, in an order in which they can run.

    `dtype` is the nominal type of activations; inputs, storage and indices have separate types. `adapters`
    change the products that are recorded afterwards. If this graph is a piece of a larger one,
    `product_types` are the types of that graph's matrices, so that both round activations alike, and
    `is_passing` says that its results are read before any other such piece runs.
    """

    dtype: DType = DType.F32
    adapters: Adapters | None = None
    product_types: frozenset[QuantType] = frozenset()
    is_passing: bool = False
    nodes: list[Tensor] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def record(
        self,
        op: str,
        operands: tuple[Operand, ...],
        shape: Shape,
        dtype: DType | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Append one operation and return its result, which is an activation if no `dtype` is given."""
        tensor = Tensor(self, op, operands, shape, dtype or self.dtype, MappingProxyType(attributes))
        self.nodes.append(tensor)
        return tensor

    def input(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        """Declare a buffer that is written before every run."""
        if name in self.inputs:
            raise ValueError(f"graph input {name!r} is declared twice")
        self.inputs[name] = self.record("input", (), shape, dtype, name=name)
        return self.inputs[name]

    def output(self, name: str, tensor: Tensor) -> None:
        """Name a result that is read after every run."""
        self.outputs[name] = tensor


def require(condition: bool, op: str, *shapes: object) -> None:
    """Raise ValueError if operands of these shapes do not fit an operation."""
    if not condition:
        raise ValueError(f"{op}: operands of shapes {', '.join(map(str, shapes))} do not fit")


def width(node: Operand) -> int:
    """Return the number of elements in one row of a node, which has all dimensions after the leading one."""
    assert isinstance(node, Tensor)
    return math.prod(size for size in node.shape[1:] if isinstance(size, int))


def source_of(node: Operand) -> Tensor:
    """Return the node that computes the bytes of a value, skipping reshapes."""
    assert isinstance(node, Tensor)
    return source_of(node.operands[0]) if node.op == "reshape" else node
