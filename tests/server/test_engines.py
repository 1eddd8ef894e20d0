"""A model that only llama.cpp supports, over HTTP, with a fake package."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.runner.loading import engine_choice
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.image.pictures import png
from tests.runner.channels.llamacpp.test_image_prompts import write_projector
from tests.runner.loading.test_engine_choice import write_misfit
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

FAKE = Path(__file__).parents[1] / "runner" / "channels" / "llamacpp" / "fake"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Make models that need llama.cpp.

    `foreign` has an architecture that is not native, `variant` has an unknown tensor, and `both` could run
    natively. Two more have an image encoder that is not native."""
    store = Store(tmp_path / "models")
    weights = write_tiny_llama(
        tmp_path / "f.gguf", general__architecture="foreign", foreign__context_length=256
    )
    for _ in create(store, ModelName.parse("foreign"), Recipe(sources=[weights])):
        pass
    weights = write_misfit(tmp_path / "v.gguf", "blk.0.attn_q_gate.weight", (2, 64))
    for _ in create(store, ModelName.parse("variant"), Recipe(sources=[weights])):
        pass
    weights = write_tiny_llama(tmp_path / "t.gguf")
    for _ in create(store, ModelName.parse("both"), Recipe(sources=[weights], parameters={"num_predict": 4})):
        pass
    encoder = write_projector(tmp_path / "mmproj.gguf")
    for name, file in (("foreign-sees", "f.gguf"), ("both-sees", "t.gguf")):
        for _ in create(store, ModelName.parse(name), Recipe(sources=[tmp_path / file, encoder])):
            pass
    return tmp_path / "models"


@pytest.fixture
def server(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE), models) as server:
        yield server


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))


def engines(server: Running) -> dict[str, str]:
    return {model["name"]: model["engine"] for model in server.ask("GET", "/api/ps").json["models"]}


@pytest.mark.parametrize("model", ["foreign", "variant"])
def test_it_answers_and_says_who_computes_it(package: None, server: Running, model: str) -> None:
    assert server.post("/api/show", {"model": model}).json["engine"] == "llama.cpp"
    answer = server.post(
        "/api/generate", {"model": model, "prompt": "abc", "raw": True, "stream": False}
    ).json
    assert (answer["response"], answer["prompt_eval_count"], answer["done_reason"]) == ("cba", 4, "stop")
    assert engines(server) == {f"{model}:latest": "llama.cpp"}
    reason = {
        "foreign": "architecture 'foreign' is not implemented here",
        "variant": "blk.0.attn_q_gate.weight",
    }
    for shown in (
        server.post("/api/show", {"model": model}).json,
        server.ask("GET", "/api/ps").json["models"][0],
    ):
        assert reason[model] in shown["engine_reason"]
        assert ".gguf" not in shown["engine_reason"]


PICTURE = png(20, 33)
B64 = b64encode(PICTURE).decode()
URL = f"data:image/png;base64,{B64}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": B64}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/api/generate", {"prompt": "abc", "images": [B64], "stream": False}),
    "raw": ("/api/generate", {"prompt": "abc", "images": [B64], "stream": False, "raw": True}),
    "chat": (
        "/api/chat",
        {"messages": [{"role": "user", "content": "abc", "images": [B64]}], "stream": False},
    ),
    "completions": (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": URL}},
                        {"type": "text", "text": "bc"},
                    ],
                }
            ]
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 200,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": SOURCE}, {"type": "text", "text": "abc"}],
                }
            ],
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "abc"},
                        {"type": "input_image", "image_url": URL},
                    ],
                }
            ]
        },
    ),
}


@pytest.mark.parametrize("model", ["foreign-sees", "both-sees"])
def test_images_come_through_every_api(package: None, server: Running, model: str) -> None:
    """The fake package answers with the reversed prompt, in which an image is the length of its file."""
    shown = server.post("/api/show", {"model": model}).json
    assert "vision" in shown["capabilities"]
    assert shown["engine"] == "llama.cpp"
    for name, (path, body) in ASKED.items():
        answer = server.post(path, {"model": model, **body})
        assert answer.status == 200, (name, answer.json)
        assert re.search(r">[0-9]{2,}<", json.dumps(answer.json)), (name, answer.json)
    assert server.ask("GET", "/api/ps").json["models"][0]["engine"] == "llama.cpp"


def test_a_bad_image_is_the_fault_of_its_request(package: None, server: Running) -> None:
    ask = {"model": "both-sees", "prompt": "abc", "stream": False}
    for data in (b"no image", b"RIFF....WAVEfmt ", PICTURE[:60]):
        refusal = server.post("/api/generate", {**ask, "images": [b64encode(data).decode()]})
        assert refusal.status == 400
        assert "image" in refusal.error
    long = server.post("/api/generate", {**ask, "prompt": "x" * 600, "images": [B64]})
    assert long.status == 400
    assert server.post("/api/generate", {**ask, "images": [B64]}).status == 200
    sound = {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}
    turns = [{"role": "user", "content": [sound]}]
    refusal = server.post("/v1/chat/completions", {"model": "both-sees", "messages": turns})
    assert refusal.status == 400
    assert "'input_audio' is not supported" in json.dumps(refusal.json)


def test_without_the_package_images_need_one_command(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)
    ask = {"model": "both-sees", "prompt": "abc", "stream": False}
    assert server.post("/api/generate", ask).status == 200, "text needs no encoder"
    assert engines(server) == {"both-sees:latest": "native"}
    refusal = server.post("/api/generate", {**ask, "images": [B64]})
    assert refusal.status == 400
    assert "does not support vision" in refusal.error
    assert "pip install 'chaski-llm[llama-cpp]'" in refusal.error


def test_a_request_may_choose(package: None, server: Running) -> None:
    ask = {"model": "both", "prompt": "abc", "raw": True, "stream": False}
    for engine in ("native", "llama.cpp", None):
        options = {} if engine is None else {"engine": engine}
        answer = server.post("/api/generate", {**ask, "options": options}).json
        assert (answer["response"] == "cba") == (engine == "llama.cpp")
        assert engines(server) == {"both:latest": engine or "native"}
    refusal = server.post("/api/generate", {**ask, "options": {"engine": "steam"}})
    assert refusal.status == 400
    assert "it must be native or llama.cpp" in refusal.error


@pytest.mark.parametrize(
    ("model", "gap"), [("foreign", "'foreign'"), ("variant", "blk.0.attn_q_gate.weight")]
)
def test_without_the_package_the_error_names_it(server: Running, models: Path, model: str, gap: str) -> None:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        refusal = server.post("/api/generate", {"model": model, "prompt": "abc", "stream": False})
        assert refusal.status == (400 if model == "foreign" else 500)
        assert gap in refusal.error
        assert "pip install 'chaski-llm[llama-cpp]'" in refusal.error
        assert str(models) not in refusal.error
    else:
        pytest.skip("xllamacpp is installed")
