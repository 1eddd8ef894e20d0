"""Stored models with a small draft model: over HTTP, and by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

import chaski
from chaski.formats.quant import QuantType
from chaski.server.settings import Settings
from tests.rewriting import write_split
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

ASKED: Any = {"prompt": "the other and an inner thing", "options": {"temperature": 0, "num_predict": 40}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """Run a server with `plain`, and `quick`: the same weights with an uploaded and quantized draft."""
    large = write_tiny_llama(folder / "large.gguf", memory=0.3)
    small = write_tiny_llama(folder / "small.gguf", memory=0.3, matrices=QuantType.F16)
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, parallel=2), folder / "models") as found:
        client = ollama.Client(found.url)
        files = {path.name: client.create_blob(path) for path in (large, small)}
        client.create("plain", files={"large.gguf": files["large.gguf"]})
        made: Any = {"model": "quick", "from": "plain", "draft_files": {"small.gguf": files["small.gguf"]}}
        assert found.post("/api/create", made | {"draft_quantize": "q8_0"}).lines[-1] == {"status": "success"}
        client._client.close()
        yield found
    patch.undo()


def test_the_server_loads_it_beside_the_model(server: Running) -> None:
    """A name with the draft and one without share the weights, but not the loaded model."""
    answers, sizes = [], []
    for name in ("plain", "quick", "plain"):
        reply = server.post("/api/generate", ASKED | {"model": name, "stream": False}).json
        (loaded,) = server.services.models.loaded
        answers.append(reply["response"])
        sizes.append(loaded.info.memory.weights)
    assert len(answers[0]) > 20
    assert len(set(answers)) == 1
    assert sizes[0] < sizes[1] == sizes[2]  # a model with a draft also serves requests without one
    shown = server.post("/api/show", {"model": "quick"}).json["modelfile"]
    assert "DRAFT" not in shown  # FROM includes it, without a path of this disk


def test_what_is_loaded_by_name_brings_it_too(
    server: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "models"))
    with chaski.load("plain") as plain, chaski.load("quick") as quick:
        assert quick.memory().weights > plain.memory().weights
        answer = quick.generate(ASKED["prompt"], temperature=0, num_predict=40)
        assert answer.done.accepted_tokens > 0
        assert answer.text == plain.generate(ASKED["prompt"], temperature=0, num_predict=40).text


def test_a_draft_may_come_in_parts(server: Running, folder: Path, tmp_path: Path) -> None:
    digests = {}
    for part in write_split(folder / "small.gguf", tmp_path):
        data = part.read_bytes()
        digests[part.name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        server.post(f"/api/blobs/{digests[part.name]}", data)
    whole = server.post("/api/create", {"model": "parted", "from": "plain", "draft_files": digests})
    assert whole.lines[-1] == {"status": "success"}


@pytest.mark.long
def test_what_cannot_be_a_draft(server: Running, tmp_path: Path) -> None:
    blob = server.services.catalog.find("plain").model.path.name.replace("-", ":")
    asked: Any = {"model": "bad", "from": "plain"}
    for files, text in (
        ({"../a.gguf": blob}, "file path must be relative"),
        ({"a.gguf": "sha256:0"}, "invalid digest format"),
        ({"a.gguf": blob, "b.gguf": blob}, "must name one GGUF file"),
    ):
        assert text in server.post("/api/create", asked | {"draft_files": files}).error
    other = write_tiny_llama(tmp_path / "other.gguf", tokenizer__ggml__tokens=["a"] * 265).read_bytes()
    digest = f"sha256:{hashlib.sha256(other).hexdigest()}"
    server.post(f"/api/blobs/{digest}", other)
    server.post("/api/create", asked | {"draft_files": {"other.gguf": digest}})
    reply = server.post("/api/generate", ASKED | {"model": "bad"})
    assert (reply.status, "a draft needs the same vocabulary" in reply.error) == (400, True)
