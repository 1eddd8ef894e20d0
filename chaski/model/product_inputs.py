"""The inputs of a model's matrix products, and the sums of their squares by column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, Graph, Tensor, Weight
from chaski.ml.plan import Launch
from chaski.ml.products import PRODUCTS, matrix_weight
from chaski.model.program import Program
from chaski.model.registry import Model

__all__ = ["ProductInputs", "Squares"]

_IN_LAYERS = "blk."


class Squares(Struct):
    """Sums of squares of the rows that matrices multiplied, (matrices, columns), and numbers of rows."""

    sums: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


class _Read(Struct, frozen=True):
    """A product's input in a plan: the names of its results there, its tensor in the file, and its size.

    groups: the order of the rows of experts, or None. index: the matrix of the tensor; None for all experts,
    or all heads, of which each multiplies a row of every token.
    """

    tensor: str
    rows: str
    groups: str | None
    matrices: int
    columns: int
    index: int | None = None


class ProductInputs(Program):
    """A program whose results contain the input of every product with a matrix of a layer.

    Each input takes memory for the largest batch as long as the program exists.
    """

    def __init__(self, model: Model, file: GGUFFile, cache: Cache, backend: Backend, max_tokens: int) -> None:
        self._reads: list[_Read] = []
        self._places = dict(_joined(model, file))
        self._file = file
        # The last layer may compute only the tokens whose outputs are wanted, so that all must be possible.
        super().__init__(model, cache, backend, max_tokens, max_tokens)

    def squares(self, batch: Batch) -> Iterator[tuple[str, Squares]]:
        """Compute a batch; yield the squares of every tensor, for some more than once.

        The outputs of all its tokens must be wanted.
        """
        launch = self.launch(self.prepare(batch)).launch
        self.wait()
        found: dict[tuple[str, str | None], Squares] = {}
        for read in self._reads:
            key = (read.rows, read.groups)
            if key not in found:
                found[key] = _squares(read, launch)
            yield read.tensor, _of_matrix(found[key], read)

    def _record(self, graph: Graph, tokens: Dim, outputs: Dim) -> int:
        width = super()._record(graph, tokens, outputs)
        self._watch(graph)
        return width

    def _watch(self, graph: Graph) -> None:
        names: dict[Tensor, str] = {}

        def name(node: Tensor) -> str:
            if node not in names:
                names[node] = f"product_input_{len(names)}"
                graph.output(names[node], node)
            return names[node]

        for node in list(graph.nodes):
            weight = matrix_weight(node) if node.op in PRODUCTS else None
            place = None if weight is None else self._place(weight)
            if weight is None or place is None:
                continue
            tensor, index, matrices = place
            x, *others = (operand for operand in node.operands if isinstance(operand, Tensor))
            groups = name(others[0]) if node.op == "expert_linear" else None
            matrices = weight.shape[0] if len(weight.shape) == 3 else matrices
            self._reads.append(_Read(tensor, name(x), groups, matrices, weight.shape[-1], index))

    def _place(self, weight: Weight) -> tuple[str, int | None, int] | None:
        """Return the tensor of a weight, its matrix there and their number; None outside of layers."""
        name = weight.name
        if not name.startswith(_IN_LAYERS):
            return None
        if name in self._places:
            return self._places[name]
        return (name, None, 1) if name in self._file.tensors else None


def _joined(model: Model, file: GGUFFile) -> Iterator[tuple[str, tuple[str, int | None, int] | None]]:
    """Yield the weights that are parts of one tensor: of a stack each, of joined rows the first one only."""
    for whole, parts in model.joined_weights():
        info = file.tensors.get(whole)
        if info is None:
            continue
        is_stack = info.shape == (len(parts), *parts[0][1].shape)
        for index, (name, _) in enumerate(parts):
            if is_stack:
                yield name, (whole, index, len(parts))
            else:
                yield name, (whole, None, 1) if index == 0 else None


def _squares(read: _Read, launch: Launch) -> Squares:
    rows = launch.rows(read.rows).reshape(-1, read.columns).astype(np.float64)
    if read.groups is None:
        matrices = read.matrices if read.index is None else 1
        of_each = (rows * rows).reshape(-1, matrices, read.columns)
        return Squares(of_each.sum(axis=0), np.full(matrices, len(of_each)))
    found = launch.rows(read.groups)
    groups = found.view(np.int32) if found.dtype == np.float32 else found
    sums, counts = np.zeros((read.matrices, read.columns)), np.zeros(read.matrices, np.int64)
    begin = 0
    for _, _, expert, end in groups.reshape(-1, 4):
        if end == begin:
            break
        part = rows[begin:end]
        sums[expert] += (part * part).sum(axis=0)
        counts[expert] += end - begin
        begin = end
    return Squares(sums, counts)


def _of_matrix(squares: Squares, read: _Read) -> Squares:
    """Put the squares of one matrix of a stack at its place."""
    if read.index is None:
        return squares
    sums, counts = np.zeros((read.matrices, read.columns)), np.zeros(read.matrices, np.int64)
    sums[read.index], counts[read.index] = squares.sums[0], squares.counts[0]
    return Squares(sums, counts)
