"""Models are made in a separate process: its progress, its errors and its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.errors import UnsupportedError, WorkerError
from chaski.formats import requantize
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.server.models import creation
from chaski.server.models.creation import create_model
from chaski.server.settings import Settings
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

NAME = ModelName.parse("made")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("store"), Script().open) as found:
        yield found


def add_weights(store: Store, folder: Path, rows: int = 1024) -> Digest:
    """Add a blob of weights that are not a model, but can be quantized."""
    path = folder / "weights.gguf"
    metadata = {"general.architecture": "llama", "general.file_type": 0}
    matrix = np.random.default_rng(3).standard_normal((rows, 1024), np.float32)
    write_gguf(path, metadata, {"blk.0.attn_q.weight": (matrix, QuantType.F32)})
    return store.blobs.add_file(path)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Replace the process by a shell that runs these lines."""
    program = folder / "program"
    program.write_text("\n".join(("#!/bin/sh", *lines)))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


async def all_steps(store: Store, body: dict[str, Any]) -> list[str]:
    async with aclosing(create_model(store.root, NAME, body)) as steps:
        return [step.status async for step in steps]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_server_quantizes_in_another_process(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this is the server's process")

    monkeypatch.setattr(requantize, "requantize", refuse)
    digest = add_weights(server.services.catalog.store, tmp_path)
    asked = {"model": "small", "files": {"a.gguf": str(digest)}, "quantize": "q4_k_m"}
    lines = server.post("/api/create", asked).lines
    assert lines[-1] == {"status": "success"}
    told = [line for line in lines if line["status"] == "quantizing F32 model to Q4_K_M"]
    assert told[-1]["completed"] == told[-1]["total"] == 1024 * 1024 * 4
    details = server.post("/api/show", {"model": "small"}).json["details"]
    assert details["quantization_level"] == "Q4_K_M"


def test_errors_keep_their_class(server: Running, tmp_path: Path) -> None:
    store = server.services.catalog.store
    asked = {"model": "x", "files": {"a.gguf": str(add_weights(store, tmp_path, 1))}, "quantize": "q2"}
    with pytest.raises(UnsupportedError, match="unsupported quantization type Q2 - supported types are F32"):
        asyncio.run(all_steps(store, asked))
    refused = server.post("/api/create", asked | {"stream": False})
    assert refused.status == 400
    assert "unsupported quantization type Q2" in refused.error
    assert "unsupported quantization type Q2" in server.post("/api/create", asked).lines[-1]["error"]


def test_a_client_that_leaves_ends_the_process(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid", 'echo \'{"status": "x"}\'', "exec sleep 600")
    body = b'{"model": "new", "from": "guide"}'
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("POST", "/api/create", body)
        with connection.getresponse() as response:
            assert response.readline() == b'{"status":"x"}\n'
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid))


def test_the_end_of_the_work_leaves_no_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    files = {"a.gguf": str(add_weights(store, tmp_path, 1 << 14))}
    before = sorted(store.blobs.folder.iterdir())

    async def stop_early() -> None:
        async with aclosing(create_model(store.root, NAME, {"files": files, "quantize": "Q6_K"})) as steps:
            async for step in steps:
                if step.completed:
                    return

    asyncio.run(stop_early())
    assert sorted(store.blobs.folder.iterdir()) == before
    assert store.locate(NAME) is None


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -9 $$", "creates made ended by the signal SIGKILL, which the system sends"),
        ("kill -6 $$", "by the signal SIGABRT"),
        ("exit 3", "with status 3"),
    ],
)
def test_a_process_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, message: str) -> None:
    stand_in(tmp_path, monkeypatch, 'echo \'{"status": "x"}\'', end)
    with pytest.raises(WorkerError, match=message):
        asyncio.run(all_steps(Store(tmp_path), {}))


def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "trap '' TERM", f"echo $$ > {tmp_path}/pid", 'echo \'{"status": "x"}\'')
    with (tmp_path / "program").open("a") as program:
        program.write("\nwhile :; do sleep 0.1; done\n")
    monkeypatch.setattr(creation, "_SECONDS_TO_END", 0.1)

    async def stop_early() -> None:
        async with aclosing(create_model(tmp_path, NAME, {})) as steps:
            await anext(steps)

    asyncio.run(stop_early())
    assert not is_running(int((tmp_path / "pid").read_text()))
