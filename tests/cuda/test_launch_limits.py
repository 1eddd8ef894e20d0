"""No kernel needs more shared memory, registers or threads than a block of a GPU has. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import chaski
from benchmarks.paper_gpu import GPUS, PaperGPU
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml import open_backend, ops
from chaski.ml.backend import Backend, BackendOptions
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.lowering import Kernel
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.graph import Dim, DType, Graph, KVRole, Mask, Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import MoE, RouterConfig
from tests import families
from tests.cuda.emulated import NAME
from tests.cuda.limits import limits_of
from tests.native.matmul_rule import QUANTIZED_TYPES

MOST = 512
Record = Callable[[CUDABackend, Graph], Tensor]

on_gpus = pytest.mark.parametrize("gpu", GPUS)


@pytest.fixture(scope="module")
def host() -> Iterator[Backend]:
    with closing(open_backend("cpu")) as opened:
        yield opened


def check(name: str, host: Backend, record: Record) -> set[Kernel]:
    """Check the kernels of a graph for any number of rows; return the kernels."""
    gpu = PaperGPU(GPUS[name].cores, GPUS[name].shared)
    backend = CUDABackend(BackendOptions(), gpu, host)
    graph = Graph()
    graph.output("y", record(backend, graph))
    chosen = check_plan(CUDAPlan(graph, gpu, host), gpu.shared_memory, GPUS[name].architecture)
    assert chosen
    return chosen


def check_plan(plan: CUDAPlan, shared_memory: int, architecture: str) -> set[Kernel]:
    """Check that a GPU can launch all kernels of a plan; return them."""
    every = (step.choose(sizes) for sizes in plan.all_sizes() for step in plan.steps)
    chosen = {kernel for kernel in every if kernel is not None}
    for kernel in chosen:
        assert kernel.shared <= shared_memory, kernel
        assert kernel.threads <= 1024, kernel
        assert max(kernel.grid[1:]) <= 65535, kernel
        bounds = dict(kernel.program.defines).get("CHASKI_BOUNDS")
        if bounds is not None:  # the compiler keeps to them
            assert kernel.threads <= int(str(bounds).partition(",")[0]), kernel
        else:
            registers, _ = limits_of(kernel.name, kernel.program, architecture)
            assert -(-registers // 8) * 8 * kernel.threads <= 1 << 16, kernel
    return chosen


def place(backend: CUDABackend, type: QuantType, weight: Weight) -> Weight:
    info = TensorInfo("w", weight.shape, type, Path("nowhere"), 0, 0, np.empty(0, np.uint8))
    backend.place([(weight, info)])
    return weight


def rows_of(graph: Graph, *shape: int, name: str = "x") -> Tensor:
    return graph.input(name, (Dim("tokens", MOST), *shape), DType.F32)


@on_gpus
@pytest.mark.parametrize("type", QUANTIZED_TYPES, ids=lambda type: type.name)
def test_products(host: Backend, gpu: str, type: QuantType) -> None:
    for columns, rows in product((256, 2048, 8192, 14336), (16, 512, 4096, 32000)):

        def record(backend: CUDABackend, graph: Graph, shape: tuple[int, int] = (rows, columns)) -> Tensor:
            x, weight = rows_of(graph, shape[1]), place(backend, type, Weight(shape))
            # Products of the norm of one token have another kernel.
            return ops.linear(ops.rms_norm(x, None, 1e-5), weight) + ops.linear(x, weight)

        check(gpu, host, record)


@on_gpus
@pytest.mark.parametrize("type", QUANTIZED_TYPES, ids=lambda type: type.name)
def test_products_of_experts(host: Backend, gpu: str, type: QuantType) -> None:
    router = RouterConfig(64, 4, Gating.SOFTMAX)

    def record(backend: CUDABackend, graph: Graph) -> Tensor:
        experts = MoE(2048, 512, router)
        for linear in (experts.ffn_gate_exps, experts.ffn_up_exps, experts.ffn_down_exps):
            place(backend, type, linear.weight)
        place(backend, QuantType.F32, experts.ffn_gate_inp.weight)
        return experts(rows_of(graph, 2048))

    check(gpu, host, record)


SIZES_OF_HEADS = (64, 64), (128, 128), (192, 128), (192, 192), (256, 256), (512, 512), (576, 512)
NUMBERS_OF_HEADS = (8, 8), (16, 4), (32, 2), (16, 1), (128, 1)


@on_gpus
@pytest.mark.parametrize(
    "type", [DType.I16, DType.F16, DType.F32, DType.Q8_0, DType.Q4_0, DType.Q3_0], ids=lambda type: type.value
)
def test_attention(host: Backend, gpu: str, type: DType) -> None:
    for (size, value_size), (heads, kv_heads) in product(SIZES_OF_HEADS, NUMBERS_OF_HEADS):
        sizes = {KVRole.KEYS: size, KVRole.VALUES: value_size}

        def record(
            backend: CUDABackend,
            graph: Graph,
            sizes: dict[KVRole, int] = sizes,
            heads: int = heads,
            kv_heads: int = kv_heads,
        ) -> Tensor:
            q = rows_of(graph, heads, sizes[KVRole.KEYS], name="q")
            where = graph.input("where", (q.shape[0],), DType.I32)
            keys, values = (
                ops.store(
                    rows_of(graph, kv_heads, size, name=role.name),
                    where,
                    backend.kv_buffer(role, 4096, kv_heads, size, type),
                )
                for role, size in sizes.items()
            )
            history = graph.input("history", (Dim("history", 4096),), DType.I32)
            mask = Mask(history, graph.input("spans", (q.shape[0], 3), DType.I32))
            return ops.attention(q, keys, values, mask, 0.125).reshape(heads * sizes[KVRole.VALUES])

        check(gpu, host, record)


@pytest.mark.long
@pytest.mark.parametrize("variant", [*families.FIRST, *families.FIRST_EMBEDDERS])
def test_all_kernels_of_families(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, compile_graph = families.converted(variant), CUDABackend.compile
    for gpu in GPUS.values():
        plans: list[CUDAPlan] = []

        def known(backend: CUDABackend, graph: Graph, plans: list[CUDAPlan] = plans) -> CUDAPlan:
            plans.append(compile_graph(backend, graph))
            return plans[-1]

        monkeypatch.setattr(CUDABackend, "compile", known)
        monkeypatch.setenv("CHASKI_EMULATED_SHARED", str(gpu.shared >> 10))
        chaski.load(path, threads=1, context=128, backend=NAME).close()
        # Keys without positions need no kernel when they move.
        chosen = [check_plan(plan, gpu.shared, gpu.architecture) for plan in plans]
        assert any(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("width", [8192, 16384])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_registers_of_norms(host: Backend, width: int, op: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the runtime compiler is not installed")
    from benchmarks.gpu_compiled import kernels_in

    def record(backend: CUDABackend, graph: Graph) -> Tensor:
        scale = place(backend, QuantType.F32, Weight((width,)))
        x = rows_of(graph, width)
        if op == "rms_norm":
            return ops.rms_norm(x, scale, 1e-5)
        return ops.layer_norm(x, scale, None, 1e-5)

    for kernel in check("h200", host, record):
        for architecture in ("sm_80", "sm_90"):
            code = kernels_in(kernel.program, architecture)[kernel.name]
            assert -(-code.registers // 8) * 8 * kernel.threads <= 1 << 16, (architecture, code)
