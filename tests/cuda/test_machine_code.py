"""Limits of the work of products in machine code: instructions of warps, counted by loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_compiled import kernels_in, nvdisasm
from benchmarks.paper_gpu import GPUS, PaperGPU, product_instructions
from chaski import _native
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml import open_backend, ops
from chaski.ml.backend import Backend, BackendOptions
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.lowering import Kernel
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.graph import Dim, DType, Graph, Weight

pytest.importorskip("cuda.bindings.nvrtc", reason="the runtime compiler is not installed")
pytestmark = [
    pytest.mark.timed,
    pytest.mark.long,
    pytest.mark.skipif(nvdisasm() is None, reason="nvdisasm is not installed"),
]

ROWS, COLUMNS = 28672, 4096  # gate and up of the 8B shape
_TILE = 16 * 8 * 32  # multiply-adds of a tensor instruction; Turing needs four of its own for them

FEW = {QuantType.Q4_K: {1: 0.16, 8: 0.245}, QuantType.Q6_K: {1: 0.135, 8: 0.21}}
"""The most instructions of a warp for each byte of weights, by the number of tokens."""
MANY: dict[QuantType, dict[str, float]] = {
    QuantType.Q4_K: {"h200": 19, "a100": 19, "rtx-4090": 19, "t4": 25.5},
    QuantType.Q5_K: {"h200": 20, "a100": 20, "rtx-4090": 20, "t4": 28},
    QuantType.Q6_K: {"h200": 28, "a100": 28, "rtx-4090": 33, "t4": 35},
}
"""The most instructions of a warp for each tensor instruction, 512 tokens."""


@pytest.fixture(scope="module")
def host() -> Iterator[Backend]:
    with closing(open_backend("cpu")) as opened:
        yield opened


def product(name: str, host: Backend, type: QuantType, tokens: int) -> Kernel:
    """Return the kernel of a product on a GPU."""
    figures = GPUS[name]
    gpu = PaperGPU(figures.cores, figures.shared)
    backend, graph, weight = CUDABackend(BackendOptions(), gpu, host), Graph(), Weight((ROWS, COLUMNS))
    info = TensorInfo("w", weight.shape, type, Path("nowhere"), 0, 0, np.empty(0, np.uint8))
    backend.place([(weight, info)])
    x = graph.input("x", (Dim("tokens", 512), COLUMNS), DType.F32)
    graph.output("y", ops.linear(x, weight))
    chosen = [step.choose({"tokens": tokens}) for step in CUDAPlan(graph, gpu, host).steps]
    return next(each for each in chosen if each is not None and each.name.startswith("matmul"))


def instructions(name: str, kernel: Kernel, type: QuantType) -> float:
    """Return the instructions of all warps of a product."""
    code = kernels_in(kernel.program, GPUS[name].architecture)[kernel.name]
    return product_instructions(kernel, code, type.block_size, COLUMNS, ROWS // 16)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("type", "tokens"), [(type, count) for type in FEW for count in FEW[type]], ids=str)
def test_instructions_of_a_byte_of_weights(host: Backend, gpu: str, type: QuantType, tokens: int) -> None:
    kernel, most = product(gpu, host, type, tokens), FEW[type][tokens]
    assert kernel.name == "matmul_super"
    each = instructions(gpu, kernel, type) / _native.matrix_bytes(int(type), ROWS, COLUMNS)
    assert 0.5 * most <= each <= most


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("type", MANY, ids=lambda type: type.name)
def test_instructions_of_a_tensor_instruction(host: Backend, gpu: str, type: QuantType) -> None:
    kernel = product(gpu, host, type, 512)
    assert kernel.name == "matmul_super_many"
    each = instructions(gpu, kernel, type) / (512 * ROWS * COLUMNS / _TILE)
    assert 0.5 * MANY[type][gpu] <= each <= MANY[type][gpu]
