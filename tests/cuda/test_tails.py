"""Steps that the last thread block or warp of another kernel computes, in runs of several sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from tests.cuda.emulated import NAME
from tests.cuda.test_same_bits import write
from tests.ml.both_backends import uniform
from tests.native.matmul_rule import activations, random_weights
from tests.rewriting import bytes_as
from tests.tiers import long_after

MOST, HIDDEN, OUT = 24, 512, 40
Activation = Callable[[Tensor, dict[str, Weight]], Tensor]


def gated(x: Tensor, w: dict[str, Weight]) -> Tensor:
    return ops.swiglu(ops.linear(x, w["gate"], w["bias"]), ops.linear(x, w["up"]))


def bounded(x: Tensor, w: dict[str, Weight]) -> Tensor:
    return ops.clamped_swiglu(ops.linear(x, w["gate"]), ops.linear(x, w["up"]), alpha=1.5, limit=2.0)


def alone(x: Tensor, w: dict[str, Weight]) -> Tensor:
    return ops.gelu(ops.linear(x, w["up"], w["bias"]))


def runs(backend: str, path: Path, activation: Activation, is_read: bool) -> tuple[list[Any], list[str]]:
    """Return the results of runs of several sizes, one after the other, and the names of kernels."""
    opened = open_backend(backend, CPUOptions(threads=1))
    with open_gguf(path) as file:
        weights = {name: Weight(info.shape, name=name) for name, info in file.tensors.items()}
        opened.place([(weights[name], info) for name, info in file.tensors.items()])
        graph = Graph()
        x = ops.embedding(graph.input("ids", (Dim("tokens", MOST),), DType.I32), weights["table"])
        hidden = activation(x, weights)
        graph.output("y", ops.linear(hidden, weights["down"]))
        if is_read:
            graph.output("hidden", hidden)
        plan = opened.compile(graph)
        opened.load(lambda share: None)
        found, names = [], []
        for tokens in (1, 3, 20, 8, 16, 2, 1):
            launch = plan.launch({"ids": np.arange(tokens, dtype=np.int32)})
            found += [launch.rows(name).copy() for name in graph.outputs]
        if isinstance(plan, CUDAPlan):
            gpu: Any = plan._gpu
            names = gpu.launched
            for constant in plan._constants:
                content = ctypes.string_at(plan._address_of(constant), constant.array.nbytes)
                assert content == constant.array.tobytes()
            assert plan._constants
        opened.close()
    return found, names


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
    tmp_path: Path, type: QuantType, rows: int, activation: Activation, is_read: bool
) -> None:
    def matrix(rows: int, columns: int) -> Any:
        return bytes_as(random_weights(type, rows, columns), type, (rows, columns))

    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, HIDDEN),
        gate=matrix(rows, HIDDEN),
        up=matrix(rows, HIDDEN),
        bias=uniform(rows),
        down=matrix(OUT, rows),
    )
    expected, _ = runs("cpu", path, activation, is_read)
    found, names = runs(NAME, path, activation, is_read)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    assert names.count("elementwise") == (1 if type.block_size == 256 else 2)  # of more tokens
