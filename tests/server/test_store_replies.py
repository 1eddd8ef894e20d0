"""Replies about models and their store: fields, statuses, and steps of long work in their order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.replying import RECORDED, check, replying
from tests.server.running import Reply, Running, running
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with replying(tmp_path_factory.mktemp("replies")) as found:
        yield found


def test_models(server: Running) -> None:
    server.post("/api/generate", {"model": "talker"})
    for path in ("/api/version", "/api/status", "/api/tags", "/api/ps", "/v1/models"):
        check(f"GET {path}", server.get(path).json)
    check("GET /v1/models/{model}", server.get("/v1/models/talker").json)
    for verbose in (False, True):
        check("POST /api/show", server.post("/api/show", {"model": "talker", "verbose": verbose}).json)
    assert len(server.get("/api/tags").json["models"]) == 3
    (running,) = server.get("/api/ps").json["models"]
    assert (running["size"], running["size_vram"]) == (4629, 4506)
    assert running["devices"] == {"cpu": 123, "imaginary:0": 4506}
    metrics = server.get("/metrics").body.decode()
    assert 'chaski_memory_bytes{model="talker:latest"} 4629.0' in metrics
    assert 'chaski_device_memory_bytes{device="imaginary:0",model="talker:latest"} 4506.0' in metrics
    assert running["prefix_cache"] == {
        "memory": {"blocks": 2, "tokens": 300, "bytes": 4000, "max_bytes": 9000},
        "disk": {"blocks": 3, "tokens": 600, "bytes": 5000, "max_bytes": 70000},
    }
    assert 'chaski_prefix_bytes{model="talker:latest",tier="disk"} 5000.0' in metrics
    assert 'chaski_prefix_tokens{model="talker:latest",tier="memory"} 300.0' in metrics
    assert server.get("/").body == b"Ollama is running"
    for path, body in (("/api/copy", {"source": "talker", "destination": "other"}),):
        assert server.post(path, body).body == b""
    assert server.ask("DELETE", "/api/delete", {"model": "other"}).body == b""


def test_copilot_tells_models_apart_by_their_names(server: Running) -> None:
    asked = {"model": "talker:latest"}
    plain = server.post("/api/show", asked).json["model_info"]
    told = server.post("/api/show", asked, **{"User-Agent": "GitHubCopilotChat/0.30"}).json["model_info"]
    assert told == plain | {"general.basename": "talker:latest"} != plain


def test_steps_of_a_long_work(server: Running) -> None:
    lines = server.post("/api/create", {"model": "child", "from": "talker"}).lines
    for line in lines:
        check("progress", line)
    assert lines[-1] == {"status": "success"}
    check("progress", server.post("/api/create", {"model": "child", "from": "talker", "stream": False}).json)
    server.ask("DELETE", "/api/delete", {"model": "child"})


def steps_of(reply: Reply) -> list[str]:
    """Return statuses without repetitions, with <> for digests."""
    found = [re.sub(r"(sha256:)?[0-9a-f]{12,64}", "<>", line["status"]) for line in reply.lines]
    return [status for status, before in zip(found, ["", *found], strict=False) if status != before]


def test_steps_are_told_in_their_order(tmp_path: Path) -> None:
    data = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
    with FakeRegistry().running() as registry, running(settings, tmp_path / "s", Script().open) as server:
        registry.put({"model": data})
        name = f"http://{registry.host}/me/model:1"
        pulled = server.post("/api/pull", {"model": name, "insecure": True})
        server.post("/api/copy", {"source": name, "destination": name.replace("model:1", "copy:2")})
        pushed = server.post("/api/push", {"model": name.replace("model:1", "copy:2"), "insecure": True})
        digest = pulled.lines[1]["digest"]
        made = server.post("/api/create", {"model": "made", "files": {"tiny.gguf": digest}})
        for path, reply in (("pull", pulled), ("push", pushed), ("create", made)):
            wanted = [step.split("|") for step in RECORDED["steps"][f"POST /api/{path}"]]
            said = iter(steps_of(reply))
            assert all(any(status in step for status in said) for step in wanted), (path, steps_of(reply))
            for line in reply.lines:
                check("progress", line)


def test_statuses_without_a_body(server: Running) -> None:
    said = RECORDED["statuses"]
    there = next(iter(server.services.catalog.store.blobs))
    new = f"sha256:{hashlib.sha256(b'new').hexdigest()}"
    missing = f"sha256:{'0' * 64}"
    found = {
        "HEAD /api/blobs/{digest}": {
            "there": server.ask("HEAD", f"/api/blobs/{there}").status,
            "missing": server.ask("HEAD", f"/api/blobs/{missing}").status,
        },
        "POST /api/blobs/{digest}": {
            "new": server.post(f"/api/blobs/{new}", b"new").status,
            "wrong": server.post(f"/api/blobs/{missing}", b"other").status,
        },
        "POST /api/copy": {
            name: server.post("/api/copy", {"source": source, "destination": "copied"}).status
            for name, source in (("there", "talker"), ("missing", "nobody"))
        },
        "DELETE /api/delete": {
            name: server.ask("DELETE", "/api/delete", {"model": model}).status
            for name, model in (("there", "copied"), ("missing", "nobody"))
        },
    }
    assert found == {name: codes for name, codes in said.items() if name != "about"}
