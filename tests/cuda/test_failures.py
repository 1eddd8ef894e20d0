"""A failure on a device gives the caller one clear error, and affects no other request."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from benchmarks.kernel_times import time_kernels
from chaski.errors import (
    ComputationError,
    DeviceError,
    MissingPackageError,
    OutOfMemoryError,
    UnsupportedError,
)
from chaski.formats.quant import QuantType
from chaski.ml import BackendOptions, open_backend, ops
from chaski.ml.backend import Device
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.graph import Dim, DType, Graph, KVRole
from chaski.names import ModelName
from chaski.runner.channels.worker.client import Worker
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cuda.emulated import NAME, STARTUP
from tests.cuda.emulated.gpu import EmulatedGPU
from tests.ml.both_backends import bound, uniform
from tests.tiny_llama import write_tiny_llama


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedGPU]:
    """Return the devices that are opened from now on."""
    opened: list[EmulatedGPU] = []

    class Known(EmulatedGPU):
        def __init__(self, number: int) -> None:
            super().__init__(number)
            opened.append(self)

    monkeypatch.setattr("tests.cuda.emulated.backend.EmulatedGPU", Known)
    return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0)


@pytest.mark.long
def test_a_device_that_fails_ends_the_request_with_a_clear_error(path: Path, gpus: list[EmulatedGPU]) -> None:
    with chaski.load(path, backend=NAME, prompt_cache=False) as llm:
        expected = llm.generate("once", num_predict=5, temperature=0).text

        def fail(recorded: object) -> None:
            raise DeviceError("the GPU failed: an illegal memory access was encountered")

        (gpu,) = gpus
        gpu.run = fail  # type: ignore[method-assign]
        with pytest.raises(DeviceError, match="illegal memory access"):
            llm.generate("once", num_predict=5, temperature=0)
        del gpu.run
        assert llm.generate("once", num_predict=5, temperature=0).text == expected


FAILURES = {
    "illegal address": "the GPU failed: an illegal memory access",
    "device lost": "the GPU failed: all CUDA-capable devices are busy or unavailable",
    "out of memory": "the GPU ran out of memory while it computed",
}


@pytest.mark.parametrize(
    "failure",
    [*list(FAILURES)[:2], *(pytest.param(name, marks=pytest.mark.long) for name in list(FAILURES)[2:])],
)
def test_a_device_that_fails_ends_the_worker_and_not_its_parent(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setenv("CHASKI_EMULATED_FAILS", f"12:{failure}")
    monkeypatch.setattr(sys, "path", [STARTUP, *sys.path])
    options: dict[str, Any] = {"num_predict": 5, "temperature": 0}
    with Worker(path, backend=NAME, context=128, parallel=2) as worker:
        expected = worker.generate("once", **options).text
        first = worker.pid
        with pytest.raises(DeviceError, match=FAILURES[failure]):
            worker.generate("once", num_predict=40, ignore_eos=True)
        monkeypatch.delenv("CHASKI_EMULATED_FAILS")
        assert worker.generate("once", **options).text == expected
        assert worker.pid not in (first, None)


@pytest.mark.parametrize(
    "failure",
    ["illegal address", *(pytest.param(name, marks=pytest.mark.long) for name in list(FAILURES)[1:])],
)
def test_a_server_lives_on_with_another_worker(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    pytest.importorskip("uvicorn")
    from tests.server.conftest import SOMEWHERE
    from tests.server.running import running

    monkeypatch.setenv("CHASKI_BACKEND", NAME)
    monkeypatch.setenv("CHASKI_EMULATED_FAILS", f"12:{failure}")
    monkeypatch.setattr(sys, "path", [STARTUP, *sys.path])
    for _ in create(Store(tmp_path / "models"), ModelName.parse("tiny"), Recipe(sources=[path])):
        pass
    body = {"model": "tiny", "prompt": "once", "raw": True, "stream": False}

    def ask(**options: object) -> Any:
        return server.post("/api/generate", body | {"options": {"temperature": 0, "num_ctx": 128, **options}})

    with running(Settings(address=SOMEWHERE), tmp_path / "models") as server:
        expected = ask(num_predict=3)
        assert expected.status == 200, expected.body
        (first,) = pids(server)
        failed = ask(num_predict=40)
        assert failed.status == 500
        assert FAILURES[failure] in failed.error
        assert server.get("/api/version").status == 200
        monkeypatch.delenv("CHASKI_EMULATED_FAILS")
        assert ask(num_predict=3).json["response"] == expected.json["response"]
        assert first not in pids(server)


def pids(server: Any) -> list[int | None]:
    """Return the processes of a server's models."""
    return [loaded.worker.pid for loaded in server.services.models.loaded]


def test_cells_that_there_is_no_room_to_move(
    gpus: list[EmulatedGPU], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(NAME)
    rows = backend.cell_rows([backend.kv_buffer(KVRole.KEYS, 32, 1, 32, DType.I16)])

    def refuse(self: EmulatedGPU, size: int) -> int:
        raise OutOfMemoryError(f"the GPU has no room for {size} bytes")

    monkeypatch.setattr(EmulatedGPU, "allocate", refuse)
    with pytest.raises(DeviceError, match=r"ran out of memory while it computed, .* no room for \d+ bytes"):
        rows.read(np.arange(3, dtype=np.int32), np.zeros(rows.num_bytes(3), np.uint8), 0, 3)


def test_cells_that_do_not_arrive(gpus: list[EmulatedGPU], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader continues before the cells arrive; a waiting caller gets the error."""
    backend = open_backend(NAME)
    rows = backend.cell_rows([backend.kv_buffer(KVRole.KEYS, 32, 1, 32, DType.I16)])
    is_late = threading.Event()

    def arrive() -> None:
        assert is_late.wait(60)
        raise DeviceError("the GPU failed")

    monkeypatch.setattr(EmulatedGPU, "mark", lambda self: arrive)
    block = np.ones(rows.num_bytes(3), np.uint8)
    reading = rows.read(np.arange(3, dtype=np.int32), block, 0, 3)
    assert reading is not None
    assert not reading.done()
    is_late.set()
    with pytest.raises(DeviceError):
        reading.result()
    with pytest.raises(DeviceError):
        rows.write(np.arange(3, dtype=np.int32), block, 0, 3)
    assert (block == 1).all()
    backend.close()


@pytest.mark.long
def test_blocks_that_do_not_arrive_are_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_late = threading.Event()

    def fail() -> None:
        assert is_late.wait(60)
        raise DeviceError("the GPU failed")

    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    monkeypatch.setattr(EmulatedGPU, "mark", lambda self: fail)
    prompt = list(range(40, 80))
    with chaski.load(path, backend=NAME) as llm:
        assert llm.generate(prompt, num_predict=2).token_ids
        tiers = llm.engine.tiers
        assert tiers is not None
        (block,) = [tiers.tree.get(name) for name in tiers.tree.names()]
        assert block is not None
        is_late.set()
        with pytest.raises(DeviceError):
            tiers.read(block)
        assert tiers.tree.names() == []


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Device("cuda:0", "a small GPU", 4, (), 1 << 20, 300_000)
    monkeypatch.setattr(EmulatedGPU, "device", property(lambda self: small))
    with pytest.raises(OutOfMemoryError, match="cuda:0"):
        chaski.load(path, backend=NAME, num_gpu=99)


def test_all_memory_is_given_back(path: Path, gpus: list[EmulatedGPU]) -> None:
    chaski.load(path, backend=NAME).close()
    (gpu,) = gpus
    assert gpu.held == {}


def test_plain_attention_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no plain form of attention"):
        open_backend(NAME, BackendOptions(flash_attention=False))


def test_without_the_package_or_a_driver_one_line_says_so(path: Path) -> None:
    if find_spec("cuda") is None:
        with pytest.raises(MissingPackageError, match=r"needs the package cuda-bindings, .* extra 'cuda'"):
            chaski.load(path, backend="cuda")
    elif not os.environ.get("CHASKI_TEST_GPU"):
        with pytest.raises(UnsupportedError, match="there is no"):
            chaski.load(path, backend="cuda")


def test_kernels_see_mistakes_of_kernels() -> None:
    """The emulated device refuses launches that no GPU accepts, and unallocated memory."""
    from chaski.ml.cuda.device import KernelLaunch, Program

    gpu = EmulatedGPU()
    kernel = gpu.kernel(Program("rows"), "rows")
    gpu.run([KernelLaunch(kernel, (1, 1, 1), 33, 0, bytes(64))])
    with pytest.raises(ComputationError, match="no GPU takes"):
        gpu.wait()
    with pytest.raises(ComputationError, match="are nobody's"):
        gpu.upload(4096, np.zeros(4, np.uint8))


@pytest.mark.parametrize("count", [1, 5, 90])
@pytest.mark.parametrize("bad", [-1, 11])
def test_an_index_outside_of_a_table_is_refused(tmp_path: Path, count: int, bad: int) -> None:
    with closing(open_backend(NAME)) as backend:
        weights = bound(backend, tmp_path, {"table": uniform(11, 64)})
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", 90),), DType.I32)
        graph.output("y", ops.embedding(ids, weights["table"]))
        plan = backend.compile(graph)
        given = np.full(count, 10, np.int32)
        plan.launch({"ids": given}).wait()
        given[-1] = bad
        with pytest.raises(ValueError, match="ids has an index outside of 0 to 10"):
            plan.launch({"ids": given})


def test_kernels_can_be_timed(tmp_path: Path) -> None:
    backend = open_backend(NAME)
    weights = bound(backend, tmp_path, {"table": uniform(11, 64), "weight": uniform(64)})
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", 8),), DType.I32)
    graph.output("y", ops.rms_norm(ops.embedding(ids, weights["table"]), weights["weight"], 1e-5))
    plan = backend.compile(graph)
    assert isinstance(plan, CUDAPlan)
    plan.launch({"ids": np.arange(3, dtype=np.int32)}).wait()
    found = list(time_kernels(plan, repeat=2))
    assert [name.split()[0] for name, _ in found] == ["embedding", "rms_norm"]
    assert all(seconds > 0 for _, seconds in found)
    backend.close()
