"""One walk over a graph, which becomes steps: kernels with their arguments.

What depends on nothing but the inputs is computed on the host and uploaded with them: the angles of rotary
embeddings, whose last bits are those of the host's library, and lists of what attention has to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski import _native
from chaski.errors import UnsupportedError
from chaski.ml.arena import Buffer
from chaski.ml.cuda.device import Grid, Program
from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Tensor, Weight

__all__ = [
    "Addressed",
    "Check",
    "Constant",
    "Count",
    "Derived",
    "Kernel",
    "Lowering",
    "Matrix",
    "Quantized",
    "Sizes",
    "Staged",
    "Step",
    "is_quantized",
    "matrix_of",
    "vector_of",
    "width",
]

Sizes = Mapping[str, int]
"""Run-time dimensions by name -> at most so many rows: the next power of two."""


class Addressed(Protocol):
    """Something with a place on the device, which it has from `load` on."""

    @property
    def address(self) -> int:
        """Its first byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix of weights in panels."""

    type: int
    rows: int
    columns: int
    memory: Addressed
    offset: int

    @property
    def address(self) -> int:
        return self.memory.address + self.offset


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """An array that is uploaded before every run: at most `rows` times `width` elements of 4 bytes."""

    rows: int
    width: int
    dtype: npt.DTypeLike

    @property
    def size(self) -> int:
        return 4 * self.rows * self.width


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array that all runs read."""

    array: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Count:
    """The place of a dimension's size on the device, an int64."""

    dim: str


@dataclass(frozen=True, slots=True)
class Quantized:
    """Activations as int8; without super-blocks where they come in blocks of 32 alone."""

    values: Buffer
    scales: Buffer
    sums: Buffer
    supers: Buffer | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in the form that suits the sizes of a run."""

    program: Program
    name: str
    grid: Grid
    threads: int
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel and its arguments; `choose` returns None where it is not needed for these sizes."""

    choose: Callable[[Sizes], Kernel | None]
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Check:
    """An input whose elements are indices from 0 to below a limit, or below the size of a dimension."""

    name: str
    limit: int
    limit_dim: str | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """Arrays that the host makes of the inputs: `make` returns them, and sizes of new dimensions."""

    targets: Sequence[Staged]
    make: Callable[[Mapping[str, npt.NDArray[Any]]], tuple[Sequence[npt.NDArray[Any]], Mapping[str, int]]]


# What the super-scales of 256 activations take (matmul.h).
_SUPER_BYTES = 36


@dataclass(slots=True, eq=False)
class Lowering:
    """The steps of a graph so far, and what they read.

    `multiprocessors`: how many blocks of threads keep the device busy.
    """

    graph: Graph
    multiprocessors: int
    steps: list[Step] = field(default_factory=list)
    staged: dict[Tensor, Staged] = field(default_factory=dict)
    checks: dict[Check, None] = field(default_factory=dict)
    derived: list[Derived] = field(default_factory=list)
    shared_parts: dict[tuple[str, Tensor], Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    in_super_blocks: bool = False
    _buffers: dict[Tensor, Buffer] = field(default_factory=dict)
    _quantized: dict[Tensor, Quantized] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dims = {d.name: d.maximum for node in self.graph.nodes for d in node.shape if isinstance(d, Dim)}
        products = [node for node in self.graph.nodes if node.op in ("linear", "first_outputs")]
        self.in_super_blocks = any(_native.wants_super_blocks(matrix_of(node).type) for node in products)

    def place(self, node: Operand) -> Buffer | Staged:
        """Where the values of a node are."""
        source = _source(node)
        return self.staged[source] if source in self.staged else self._buffers[source]

    def new(self, node: Tensor) -> Buffer:
        """Memory for a node; every element has 4 bytes."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        self._buffers[node] = Buffer(4 * leading.maximum * width(node), width(node))
        return self._buffers[node]

    def dim(self, node: Operand) -> str:
        """The name of a node's leading dimension."""
        assert isinstance(node, Tensor)
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{node.op}: the leading dimension must be a run-time one"
        return leading.name

    def count(self, node: Operand) -> Count:
        """The size of a node's leading dimension, where kernels read it."""
        return Count(self.dim(node))

    def check(self, indices: Operand, limit: int, limit_of: Operand | None = None) -> None:
        """Refuse runs in which an input holds an index outside of [0, limit)."""
        assert isinstance(indices, Tensor)
        dim = None if limit_of is None else self.dim(limit_of)
        self.checks[Check(indices.attributes["name"], limit, dim)] = None

    def step(self, choose: Callable[[Sizes], Kernel | None], *arguments: Any) -> None:
        """Add a step. Tensors among the arguments mean the memory of their values."""
        self.steps.append(Step(choose, [self.place(x) if isinstance(x, Tensor) else x for x in arguments]))

    def for_each(self, program: str, kernel: str, node: Operand, elements: int, *arguments: Any) -> None:
        """Add a step with a thread for each of so many elements of each row of `node`."""
        dim = self.dim(node)

        def choose(sizes: Sizes) -> Kernel:
            return Kernel(Program(program), kernel, (-(-sizes[dim] * elements // 256), 1, 1), 256)

        self.step(choose, *arguments)

    def quantized(self, x: Operand) -> Quantized:
        """The int8 form of a node. If no earlier step makes it, one is added."""
        source = _source(x)
        if source not in self._quantized:
            leading, columns = source.shape[0], width(source)
            assert isinstance(leading, Dim)
            if columns % 32:
                raise UnsupportedError(f"activations of {columns} elements cannot be rounded in blocks of 32")
            is_super = self.in_super_blocks and columns % 256 == 0
            elements = leading.maximum * columns
            form = Quantized(
                Buffer(elements, columns),
                Buffer(elements // 8, columns // 32),
                Buffer(elements // 8, columns // 16),
                Buffer(_SUPER_BYTES * elements // 256, columns // 256) if is_super else None,
            )
            self._quantized[source] = form
            kernel = "quantize_super_blocks" if is_super else "quantize_blocks"
            dim = self.dim(source)

            def choose(sizes: Sizes) -> Kernel:
                blocks = -(-sizes[dim] * columns // (8 * 128))
                return Kernel(Program("quantize"), kernel, (blocks, 1, 1), 128)

            self.step(choose, source, Count(dim), columns, form.values, form.scales, form.sums, form.supers)
        return self._quantized[source]


def width(node: Operand) -> int:
    """The number of elements of one row: of all dimensions after the leading one."""
    assert isinstance(node, Tensor)
    return math.prod(d for d in node.shape[1:] if isinstance(d, int))


def matrix_of(product: Tensor) -> Matrix:
    """The matrix that a node multiplies by."""
    weight = next(operand for operand in product.operands if isinstance(operand, Weight))
    assert isinstance(weight.handle, Matrix), f"{weight.name} is not a matrix"
    return weight.handle


def vector_of(weight: Operand | None) -> Addressed | None:
    """The floats of a weight that is a vector, or a plain matrix; None for None."""
    if weight is None:
        return None
    assert isinstance(weight, Weight)
    assert not isinstance(weight.handle, Matrix | list), f"{weight.name} is not a vector"
    handle: Any = weight.handle
    found: Addressed = handle
    return found


def is_quantized(matrix: Matrix) -> bool:
    """Whether products with a matrix read int8 activations."""
    return _native.is_quantized(matrix.type)


def storage_of(content: Operand) -> KVBuffer:
    """The buffer that a node returned the content of."""
    assert isinstance(content, Tensor)
    buffer = content.operands[-1]
    assert isinstance(buffer, KVBuffer)
    return buffer


def _source(node: Operand) -> Tensor:
    """The node that computes the bytes: reshaping does not."""
    assert isinstance(node, Tensor)
    return _source(node.operands[0]) if node.op == "reshape" else node


def tasks_of(spans: npt.NDArray[np.int32], chunk: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The chunks of what each token sees -> (tasks, 2) [token, chunk], and (tokens + 1,) each one's first."""
    first, ends = spans[:, 2], spans[:, 2] + spans[:, 1] - spans[:, 0]
    counts = -(-ends // chunk) - first // chunk
    starts = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    tokens = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    chunks = np.arange(len(tokens), dtype=np.int32) - starts[tokens]
    return np.stack([tokens, chunks], axis=1), starts
