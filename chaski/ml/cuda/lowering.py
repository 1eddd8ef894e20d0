"""Lowering of a graph to steps, which are kernels with their arguments, in one walk.

The host computes some values that depend only on the inputs, and uploads them with these: the angles of
rotary embeddings, so that their last bits come from the host's mathematical library, and attention's lists of
work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski import _native
from chaski.errors import UnsupportedError
from chaski.formats.quant import QuantType
from chaski.ml.arena import Buffer
from chaski.ml.cuda.device import Grid, Program
from chaski.ml.fusing import sums_of_products, uses_of
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, Operand, Tensor, Weight, source_of, width
from chaski.ml.products import matrix_weight
from chaski.ml.rounding import BLOCK, SUPER_BLOCK, Rounding

__all__ = [
    "Addressed",
    "Check",
    "Constant",
    "Count",
    "Derived",
    "Double",
    "HeadsTail",
    "Kernel",
    "Lowering",
    "Made",
    "Matrix",
    "Quantized",
    "Sizes",
    "Staged",
    "Step",
    "Tail",
    "is_quantized",
    "largest_of",
    "matrices_of",
    "matrix_of",
    "staged_for",
    "vector_of",
]

Sizes = Mapping[str, int]
"""Run-time dimensions by name -> an upper bound on their rows: the next power of two."""


class Addressed(Protocol):
    """An object with a place on the device, which exists after `load`."""

    @property
    def address(self) -> int:
        """The address of its first byte."""


class Matrix(Struct, frozen=True, eq=False):
    """A matrix of weights in panels."""

    type: int
    rows: int
    columns: int
    memory: Addressed
    offset: int

    @property
    def address(self) -> int:
        return self.memory.address + self.offset


class Staged(Struct, frozen=True, eq=False):
    """An array that is uploaded before every run: at most `rows` · `width` elements of 4 bytes."""

    rows: int
    width: int
    dtype: npt.DTypeLike

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return 4 * self.rows * self.width


class Constant(Struct, frozen=True, eq=False):
    """An array that is the same before each kernel."""

    array: npt.NDArray[Any]


class Count(Struct, frozen=True):
    """The address of a dimension's size on the device, an int64."""

    dim: str


class Double(Struct, frozen=True):
    """A number that a kernel takes in double precision."""

    value: float


class Quantized(Struct, frozen=True):
    """Activations as int8. `supers` is absent if they are rounded only in blocks of 32."""

    values: Buffer
    scales: Buffer
    sums: Buffer
    supers: Buffer | None

    @property
    def fields(self) -> Sequence[Buffer | None]:
        """The fields that kernels receive."""
        return self.values, self.scales, self.sums, self.supers


class Kernel(Struct, frozen=True):
    """A kernel in the form for the sizes of a run. `is_early`: see `KernelLaunch`."""

    program: Program
    name: str
    grid: Grid
    threads: int
    shared: int = 0
    is_early: bool = False


class Tail(Struct, frozen=True):
    """An elementwise node that the products of its operands compute in the runs that `is_taken` names.

    `y`, `rounded`: the places of its floats and of its int8 form.
    """

    y: Buffer | None
    rounded: Sequence[Buffer | None]
    is_taken: Callable[[Sizes], bool]


class HeadsTail(Struct, eq=False):
    """Products that turn and store the heads of queries, keys and values in runs with a single token.

    `queries`: the place of turned queries. `dim`: the number of tokens. `is_complete`: whether all products
    of a layer's queries, keys and values can do it, so that no other kernel does.
    """

    queries: Buffer | None
    dim: str
    is_complete: bool = False

    def is_taken(self, sizes: Sizes) -> bool:
        """Return whether the products do it in runs of these sizes."""
        return self.is_complete and sizes[self.dim] == 1


class Step(Struct, frozen=True):
    """A kernel and its arguments. `choose` returns None if a run of these sizes does not need it."""

    choose: Callable[[Sizes], Kernel | None]
    arguments: Sequence[Any]


class Check(NamedTuple):
    """An input whose elements are indices from 0 to below a limit, or below the size of a dimension."""

    name: str
    limit: int
    limit_dim: str | None = None


Made = tuple[Sequence[npt.NDArray[Any]], Mapping[str, int]]
"""Arrays, and the sizes of new dimensions."""


class Derived(Struct, frozen=True):
    """Arrays that the host makes from the inputs and sizes.

    `make` returns them and the sizes of new dimensions. It raises ValueError for inputs that do not fit.
    """

    targets: Sequence[Staged]
    make: Callable[[Mapping[str, npt.NDArray[Any]], Sizes], Made]


_TYPES: Mapping[DType, npt.DTypeLike] = {DType.I32: np.int32, DType.F32: np.float32}
# Products that one step can compute several of.
_TOGETHER = ("linear", "expert_linear")
_FEW = 64
# Bytes per block and per super-block of activations, in addition to the int8 (matmul.h).
_SCALE_BYTES = _SUM_BYTES = 4
_SUPER_BYTES = 36


class Lowering:
    """The steps of a graph so far, and the data that they read.

    `multiprocessors`: the number of thread blocks that keep the device busy. `shared_memory`: the bytes that
    a thread block may share. `sums`: the products that are fused with a sum, each with that sum. `together`:
    products that one step computes, by the first of them. `staged`: the uploads. `rounding`: which values
    products read as int8. `checks`, `derived`: the host's work before a run.
    `dims`: the largest size of each dimension. `forms`: those that number forms of attention.
    `tails`: elementwise nodes that some runs compute in the products of their operands.
    `normed`: norms of rows that the products which read them compute themselves for a single token.
    `heads`: products that may turn queries, or store keys or values, by the node that turns or stores.
    `shared_parts`: objects that several nodes share, by their kind and the node that they are made from.
    """

    def __init__(self, graph: Graph, multiprocessors: int, shared_memory: int) -> None:
        self.graph = graph
        self.multiprocessors = multiprocessors
        self.shared_memory = shared_memory
        self.steps: list[Step] = []
        self.staged: dict[Tensor, Staged] = {}
        self.checks: dict[Check, None] = {}
        self.derived: list[Derived] = []
        self.shared_parts: dict[tuple[str, Tensor], Any] = {}
        self.dims = {d.name: d.maximum for node in graph.nodes for d in node.shape if isinstance(d, Dim)}
        self.forms: set[str] = set()
        self.uses = uses_of(graph)
        self.sums = sums_of_products(graph, self.uses, ("linear",))
        self.rounding = Rounding(graph, _type_of)
        self.together = _groups(graph, self.rounding.products, self.sums)
        self._buffers: dict[Tensor, Buffer] = {}
        self._quantized: dict[Tensor, Quantized] = {}
        self._waiting: dict[Tensor, Callable[[], None]] = {}
        self._zeros: dict[int, Constant] = {}
        self.tails: dict[Tensor, Tail] = {}
        self.normed: set[Tensor] = set()
        self.heads: dict[Tensor, HeadsTail] = {}

    def place(self, node: Operand) -> Buffer | Staged:
        """Return the place of a node's values."""
        source = source_of(node)
        self.finish(source)
        return self.staged[source] if source in self.staged else self._buffers[source]

    def is_placed(self, node: Tensor) -> bool:
        """Return whether a node has a place already."""
        return node in self.staged or node in self._buffers

    def wait_with(self, node: Tensor, emit: Callable[[], None]) -> None:
        """Defer a node: `emit` computes it when another node reads it, unless `taken` is called before."""
        self._waiting[node] = emit

    def taken(self, node: Operand) -> bool:
        """Return whether a node is deferred. If so, it no longer is, and the caller must compute it."""
        return self._waiting.pop(source_of(node), None) is not None

    def finish(self, *nodes: Tensor) -> None:
        """Compute those of the nodes that are deferred."""
        for node in nodes:
            if node in self._waiting:
                self._waiting.pop(node)()

    @property
    def waiting(self) -> Sequence[Tensor]:
        """The nodes that are deferred."""
        return list(self._waiting)

    def new(self, node: Tensor) -> Buffer:
        """Return memory for a node; every element has 4 bytes."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        self._buffers[node] = Buffer(4 * leading.maximum * width(node), width(node))
        return self._buffers[node]

    def new_if_read(self, node: Tensor) -> Buffer | None:
        """Return memory for a node's floats; None if nothing reads them, because products read only int8."""
        return self.new(node) if node in self.rounding.floats else None

    def zeros(self, count: int) -> Constant:
        """Return numbers of 32 bits that are zeros before and after each kernel."""
        if count not in self._zeros:
            self._zeros[count] = Constant(np.zeros(count, np.uint32))
        return self._zeros[count]

    def dim(self, node: Operand) -> str:
        """Return the name of a node's leading dimension."""
        assert isinstance(node, Tensor)
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{node.op}: the leading dimension must be a run-time one"
        return leading.name

    def count(self, node: Operand) -> Count:
        """Return the place on the device of the size of a node's leading dimension."""
        return Count(self.dim(node))

    def check(self, indices: Operand, limit: int, limit_of: Operand | None = None) -> None:
        """Reject runs in which an input holds an index outside [0, limit). Computed indices fit always."""
        assert isinstance(indices, Tensor)
        if indices.op != "input":
            return
        dim = None if limit_of is None else self.dim(limit_of)
        self.checks[Check(indices.attributes["name"], limit, dim)] = None

    def step(self, choose: Callable[[Sizes], Kernel | None], *arguments: Any) -> None:
        """Add a step. A tensor among the arguments stands for the memory of its values."""
        self.steps.append(Step(choose, [self.place(x) if isinstance(x, Tensor) else x for x in arguments]))

    def for_each(self, program: str, kernel: str, node: Operand, elements: int, *arguments: Any) -> None:
        """Add a step with a thread for each of `elements` elements of each row of `node`."""
        dim = self.dim(node)

        def choose(sizes: Sizes) -> Kernel:
            return Kernel(Program(program), kernel, (-(-sizes[dim] * elements // 256), 1, 1), 256)

        self.step(choose, *arguments)

    def activations(self, product: Tensor) -> Tensor:
        """Return the node whose rows a product reads: for rows sorted by expert, the node before sorting."""
        source = source_of(product.operands[0])
        return source_of(source.operands[0]) if source in self.rounding.dispatched else source

    def is_super(self, node: Tensor) -> bool:
        """Return whether a node is rounded in super-blocks, each within one row that products read."""
        return self.rounding.block(self.rounding.columns.get(node, width(node))) == SUPER_BLOCK

    def rounding_program(self, program: str, node: Tensor, *defines: tuple[str, str | int]) -> Program:
        """Return a program that rounds the rows of a node to int8."""
        return Program(program, (*defines, ("CHASKI_SUPER_BLOCKS", int(self.is_super(node)))))

    def quantized_with(self, node: Tensor) -> Sequence[Buffer | None]:
        """Return the places where a node's step puts its int8 form; all None if nothing reads that."""
        return self._new_quantized(node).fields if node in self.rounding.columns else (None,) * 4

    def quantized(self, x: Operand) -> Quantized:
        """Return the int8 form of a node; add a step that makes it if no earlier one does."""
        source = source_of(x)
        if source not in self._quantized:
            self._new_quantized(source)
            self.round_rows(source)
        return self._quantized[source]

    def round_rows(self, source: Tensor, where: Callable[[Sizes], bool] = lambda sizes: True) -> None:
        """Add a step that makes the int8 form of a node in the runs whose sizes meet a condition."""
        columns, dim = width(source), self.dim(source)
        program = self.rounding_program("quantize", source)

        def choose(sizes: Sizes) -> Kernel | None:
            blocks = -(-sizes[dim] * columns // (8 * 128))
            return Kernel(program, "quantize_rows", (blocks, 1, 1), 128) if where(sizes) else None

        self.step(choose, source, Count(dim), columns, *self._quantized[source].fields)

    def _new_quantized(self, node: Tensor) -> Quantized:
        leading, columns = node.shape[0], width(node)
        assert isinstance(leading, Dim)
        if (k := self.rounding.columns[node]) % BLOCK:
            raise UnsupportedError(f"activations of {k} elements cannot be rounded in blocks of {BLOCK}")
        rows, blocks, supers = leading.maximum, columns // BLOCK, columns // SUPER_BLOCK
        self._quantized[node] = Quantized(
            Buffer(rows * columns, columns),
            Buffer(rows * blocks * _SCALE_BYTES, blocks),
            Buffer(rows * blocks * _SUM_BYTES, 2 * blocks),  # a sum of 16 bits for each half of a block
            Buffer(rows * supers * _SUPER_BYTES, supers) if self.is_super(node) else None,
        )
        return self._quantized[node]


def matrix_of(product: Tensor) -> Matrix:
    """Return the matrix that a node multiplies by, or the first expert's."""
    return matrices_of(product)[0]


def matrices_of(product: Tensor) -> Sequence[Matrix]:
    """Return the matrix that a node multiplies by, or all experts' matrices, which are equally spaced."""
    return matrices_of_weight(matrix_weight(product))


def matrices_of_weight(weight: Weight) -> Sequence[Matrix]:
    found: Any = weight.handle
    matrices: Sequence[Matrix] = found if isinstance(found, list) else [found]
    assert all(isinstance(matrix, Matrix) for matrix in matrices), f"{weight.name} is not a matrix"
    return matrices


def vector_of(weight: Operand | None) -> Addressed | None:
    """Return the floats of a weight that is a vector or a plain matrix; None for None."""
    if weight is None:
        return None
    assert isinstance(weight, Weight)
    assert not isinstance(weight.handle, Matrix | list), f"{weight.name} is not a vector"
    handle: Any = weight.handle
    found: Addressed = handle
    return found


def is_quantized(matrix: Matrix) -> bool:
    """Return whether products with a matrix read int8 activations."""
    return _native.is_quantized(matrix.type)


def storage_of(content: Operand) -> KVBuffer:
    """Return the buffer whose content a node is."""
    assert isinstance(content, Tensor)
    buffer = content.operands[-1]
    assert isinstance(buffer, KVBuffer)
    return buffer


def staged_for(name: str, node: Tensor) -> Staged:
    """Return the place of an array with the shape of a node."""
    leading = node.shape[0]
    assert isinstance(leading, Dim), f"{name}: the leading dimension of an input must be a run-time one"
    return Staged(leading.maximum, width(node), _TYPES[node.dtype])


def _type_of(weight: Weight) -> QuantType:
    return QuantType(matrices_of_weight(weight)[0].type)


def _groups(
    graph: Graph, rounded: Collection[Tensor], sums: Mapping[Tensor, Tensor]
) -> dict[Tensor, list[Tensor]]:
    """Return groups of up to three products, by the first: same activations, same quantized matrix type."""
    found: dict[tuple[str, Tensor, int], list[Tensor]] = {}
    groups: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        if node.op in _TOGETHER and node in rounded and node not in sums:
            key = node.op, source_of(node.operands[0]), matrix_of(node).type
            if len(found.get(key, ())) in (0, 3):
                found[key] = groups[node] = []
            found[key].append(node)
    return groups


def largest_of(array: npt.NDArray[np.int32]) -> int:
    """Return the largest number; 0 without any. They are read as unsigned: negative ones are too large."""
    size = array.size
    if size > _FEW:
        return int(np.maximum.reduce(array.view(np.uint32), axis=None))
    if size == 1:
        return array.item() & 0xFFFFFFFF
    return max((value & 0xFFFFFFFF for value in array.ravel().tolist()), default=0)


def tasks_of(spans: npt.NDArray[np.int32], chunk: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the chunks that each token sees: (tasks, 2) [token, chunk], and (tokens + 1,) first tasks.

    A token that sees nothing has one chunk too, so that its result is written.
    """
    if len(spans) == 1:  # most batches with one sequence have one token
        ((begin, end, first),) = spans.tolist()
        return _tasks_of_one(max(1, -(-(first + end - begin) // chunk) - first // chunk))
    first, ends = spans[:, 2], spans[:, 2] + spans[:, 1] - spans[:, 0]
    counts = np.maximum(1, -(-ends // chunk) - first // chunk)
    starts = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    tokens = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    chunks = np.arange(len(tokens), dtype=np.int32) - starts[tokens]
    return np.stack([tokens, chunks], axis=1), starts


@lru_cache
def _tasks_of_one(count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return `tasks_of` a single token. It is cached, because the count of chunks rarely changes."""
    tasks = np.stack([np.zeros(count, np.int32), np.arange(count, dtype=np.int32)], axis=1)
    return tasks, np.array([0, count], np.int32)


def sequences_of(spans: npt.NDArray[np.int32]) -> int:
    """Return the number of runs of neighbouring tokens of one sequence."""
    return 1 + int(np.count_nonzero(np.diff(spans[:, 0] - spans[:, 2])))


def tiles_of(spans: npt.NDArray[np.int32], most: int) -> npt.NDArray[np.int32]:
    """Group neighbours of one sequence, up to `most` at a time -> (tiles, 2) [first token, tokens]."""
    origins = spans[:, 0] - spans[:, 2]
    is_first = np.concatenate([[True], origins[1:] != origins[:-1]])
    runs = np.flatnonzero(is_first)
    begins = runs[np.cumsum(is_first) - 1]
    firsts = np.flatnonzero((np.arange(len(spans)) - begins) % most == 0)
    counts = np.diff(np.concatenate([firsts, [len(spans)]]))
    return np.stack([firsts, counts], axis=1).astype(np.int32)
