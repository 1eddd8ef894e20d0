"""Graphs over rows of a table, computed by the test backend and the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from tests.backends import USUAL

MAX_TOKENS = 9
RNG = np.random.default_rng(7)
Arrays = dict[str, npt.NDArray[np.float32]]


def bound(
    backend: Backend, directory: Path, arrays: Arrays, plain: tuple[str, ...] = ()
) -> dict[str, Weight]:
    """Return float32 weights loaded from a file, like a model's."""
    path = directory / "weights.gguf"
    tensors = {name: (array, QuantType.F32) for name, array in arrays.items()}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    weights = {name: Weight(array.shape, plain=name in plain, name=name) for name, array in arrays.items()}
    with open_gguf(path) as file:
        backend.place([(weights[name], file.tensors[name]) for name in arrays])
        backend.load(lambda _: None)
    return weights


def results(
    directory: Path,
    arrays: Arrays,
    record: Callable[[Tensor, dict[str, Weight], Graph], Tensor],
    tokens: int,
    isa: str,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the rows of a graph over embedded ids on both backends: (reference, the other)."""
    found = []
    ids = RNG.integers(0, len(arrays["table"]), tokens)
    for backend in (
        open_backend("reference"),
        open_backend(USUAL, CPUOptions(threads=2, isa=isa)),
    ):
        weights = bound(backend, directory, arrays)
        graph = Graph()
        symbol = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
        graph.output("y", record(symbol, weights, graph))
        plan = backend.compile(graph)
        found.append(plan.launch({"ids": ids}).rows("y"))
    return found[0], found[1]


def uniform(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)
