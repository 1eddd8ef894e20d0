"""Steps that are computed at the start or the end of another kernel, in runs of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from tests.cuda.devices import launched_kernels
from tests.cuda.emulated import NAME
from tests.cuda.test_same_bits import write
from tests.ml.both_backends import uniform
from tests.native.matmul_rule import activations, random_weights
from tests.rewriting import bytes_as
from tests.tiers import long_after

MOST, HIDDEN, OUT = 24, 512, 40
Weights = dict[str, Weight]
Record = Callable[[Tensor, Weights], dict[str, Tensor]]


def matrix(type: QuantType, rows: int, columns: int) -> Any:
    return bytes_as(random_weights(type, rows, columns), type, (rows, columns))


def gated(x: Tensor, w: Weights) -> Tensor:
    return ops.swiglu(ops.linear(x, w["gate"], w["bias"]), ops.linear(x, w["up"]))


def bounded(x: Tensor, w: Weights) -> Tensor:
    return ops.clamped_swiglu(ops.linear(x, w["gate"]), ops.linear(x, w["up"]), alpha=1.5, limit=2.0)


def alone(x: Tensor, w: Weights) -> Tensor:
    return ops.gelu(ops.linear(x, w["up"], w["bias"]))


def runs(backend: str, path: Path, record: Record) -> tuple[list[Any], list[str]]:
    """Return the results of runs of several sizes, one after the other, and the names of kernels.

    `record` returns the results of a graph for the rows of a table.
    """
    opened = open_backend(backend, CPUOptions(threads=1))
    with open_gguf(path) as file:
        weights = {name: Weight(info.shape, name=name) for name, info in file.tensors.items()}
        opened.place([(weights[name], info) for name, info in file.tensors.items()])
        graph = Graph()
        x = ops.embedding(graph.input("ids", (Dim("tokens", MOST),), DType.I32), weights["table"])
        for name, result in record(x, weights).items():
            graph.output(name, result)
        plan = opened.compile(graph)
        opened.load(lambda share: None)
        found = []
        for tokens in (1, 3, 20, 8, 16, 2, 1):
            launch = plan.launch({"ids": np.arange(tokens, dtype=np.int32)})
            found += [launch.rows(name).copy() for name in graph.outputs]
        names = launched_kernels(plan)
        opened.close()
    return found, names


def same_runs(path: Path, record: Record) -> list[str]:
    """Compare the emulated device with the processor; return the names of kernels."""
    expected, _ = runs("cpu", path, record)
    found, names = runs(NAME, path, record)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    return names


@pytest.mark.parametrize(
    ("type", "rows", "activation", "is_read"),
    long_after(
        2,
        [
            (QuantType.Q4_K, 768, gated, False),
            (QuantType.Q8_0, 288, gated, False),
            (QuantType.Q4_K, 768, bounded, True),
            (QuantType.Q6_K, 512, alone, False),
            (QuantType.Q8_0, 32, alone, True),
        ],
    ),
)
def test_products_end_with_an_elementwise_operation(
    tmp_path: Path, type: QuantType, rows: int, activation: Callable[[Tensor, Weights], Tensor], is_read: bool
) -> None:
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, HIDDEN),
        gate=matrix(type, rows, HIDDEN),
        up=matrix(type, rows, HIDDEN),
        bias=uniform(rows),
        down=matrix(type, OUT, rows),
    )

    def record(x: Tensor, w: Weights) -> dict[str, Tensor]:
        hidden = activation(x, w)
        return {"y": ops.linear(hidden, w["down"])} | ({"hidden": hidden} if is_read else {})

    names = same_runs(path, record)
    assert names.count("elementwise") == 2  # of 20 and of 16 tokens


@pytest.mark.parametrize(
    ("types", "columns", "shared"),
    long_after(
        1,
        [
            ((QuantType.Q4_K, QuantType.Q6_K), 512, 227),
            ((QuantType.Q6_K, QuantType.Q4_K), 4096, 64),  # eight warps multiply two super-blocks each
            ((QuantType.Q3_K, QuantType.Q5_K), 2048, 99),
            ((QuantType.Q2_K, QuantType.Q2_K), 8192, 163),  # the row has no room
            ((QuantType.Q4_K, QuantType.Q8_0), 512, 227),  # which has another kernel
        ],
    ),
)
def test_products_begin_with_a_norm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    types: tuple[QuantType, QuantType],
    columns: int,
    shared: int,
) -> None:
    monkeypatch.setenv("CHASKI_EMULATED_SHARED", str(shared))
    first, second = types
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, columns),
        scale=uniform(columns),
        gate=matrix(first, 256, columns),
        up=matrix(first, 256, columns),
        other=matrix(second, OUT, columns),
        down=matrix(QuantType.Q4_K, OUT, 256),
        bias=uniform(256),
    )

    def record(x: Tensor, w: Weights) -> dict[str, Tensor]:
        normed = ops.rms_norm(x, w["scale"], 1e-5)
        later = ops.rms_norm(x, None, 1e-5)  # a result, so that a kernel computes it
        return {
            "y": ops.linear(gated(normed, w), w["down"]),
            "other": ops.linear(normed, w["other"]),
            "last": ops.linear(later, w["other"]),
            "later": later,
        }

    is_taken = second is not QuantType.Q8_0 and columns < 8192
    assert same_runs(path, record).count("rms_norm") == 7 + (5 if is_taken else 7)
