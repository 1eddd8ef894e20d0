"""Vectors of a real model through all three APIs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest

import chaski
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.server.test_hostile_sizes import longest_wait
from tests.tiny_llama import write_tiny_llama

TEXTS = ["the other end", "in the", "an end", "hello there"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("vectors") / "vectors.gguf", llama__pooling_type=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("vectors-models")
    for _ in create(Store(folder), ModelName.parse("vectors"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE, parallel=2), folder) as found:
        yield found


@pytest.fixture(scope="module")
def expected(file: Path) -> np.ndarray:
    with chaski.load(file) as model:
        return model.embed(TEXTS)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as found:
        yield found


def test_the_native_api(server: Running, expected: np.ndarray) -> None:
    client = ollama.Client(server.url)
    together = client.embed("vectors", TEXTS)
    np.testing.assert_array_equal(np.float32(together.embeddings), expected)
    assert together.prompt_eval_count > len(TEXTS)
    alone = client.embed("vectors", TEXTS[2])
    np.testing.assert_array_equal(np.float32(alone.embeddings), expected[2:3])
    assert client.embed("vectors", []).embeddings == []
    old = client.embeddings("vectors", TEXTS[0])
    np.testing.assert_allclose(
        np.array(old.embedding) / np.linalg.norm(old.embedding), expected[0], rtol=1e-5
    )
    assert client.show("vectors").capabilities == ["embedding"]
    client._client.close()


@pytest.mark.parametrize("route", ["/api/embed", "/v1/embeddings"])
def test_more_dimensions_than_there_are_is_an_error(server: Running, route: str) -> None:
    size = len(server.post("/api/embed", {"model": "vectors", "input": "x"}).json["embeddings"][0])
    whole = {"model": "vectors", "input": "x", "dimensions": size}
    assert server.post(route, whole).status == 200
    reply = server.post(route, whole | {"dimensions": size + 1})
    assert reply.status == 400
    assert f"dimensions is {size + 1}, but the vectors of this model have {size}" in reply.body.decode()


def test_fewer_dimensions_have_length_one_again(server: Running, expected: np.ndarray) -> None:
    reply = server.post("/api/embed", {"model": "vectors", "input": TEXTS, "dimensions": 5}).json
    cut = expected[:, :5] / np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(reply["embeddings"], cut, rtol=1e-5)
    assert server.post("/api/embed", {"model": "vectors", "input": "x", "dimensions": -1}).status == 400


def test_tokens_are_taken_as_well(server: Running, expected: np.ndarray) -> None:
    tokens = [server.post("/api/tokenize", {"model": "vectors", "content": t}).json["tokens"] for t in TEXTS]
    reply = server.post("/api/embed", {"model": "vectors", "input": tokens}).json
    np.testing.assert_array_equal(np.float32(reply["embeddings"]), expected)
    for wrong in ({"a": 1}, 5, [["text"]], [1.5]):
        assert server.post("/api/embed", {"model": "vectors", "input": wrong}).status == 400


def test_openai(client: openai.OpenAI, server: Running, expected: np.ndarray) -> None:
    found = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    np.testing.assert_array_equal(np.float32([each.embedding for each in found.data]), expected)
    body = {"model": "vectors", "input": TEXTS[0], "encoding_format": "base64"}
    data = server.post("/v1/embeddings", body).json["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(data), "<f4"), expected[0])
    wrongs: list[dict[str, object]] = [{"input": []}, {"encoding_format": "hex"}]
    for wrong in wrongs:
        assert server.post("/v1/embeddings", body | wrong).status == 400


def test_long_texts(server: Running) -> None:
    body = {"model": "vectors", "input": "an end " * 400}
    assert server.post("/api/embed", body).json["prompt_eval_count"] == 256
    refused = server.post("/api/embed", body | {"truncate": False})
    assert refused.status == 400
    assert refused.error.startswith("the input length exceeds the context length: the prompt has ")


def test_such_a_model_makes_no_text(server: Running) -> None:
    for path, what in (
        ("generate", {"prompt": "x"}),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        reply = server.post(f"/api/{path}", {"model": "vectors"} | what)
        assert (reply.status, reply.error) == (400, f'"vectors" does not support {path}')


def test_a_model_that_is_not_there(server: Running) -> None:
    reply = server.post("/api/embed", {"model": "nobody", "input": "x"})
    assert (reply.status, reply.error) == (404, 'model "nobody" not found, try pulling it first')


def test_what_closes_a_text_stays_when_it_is_cut(tmp_path: Path) -> None:
    """Models that use the last token, or SEP, see it, both in the server and in Python."""
    fields = {"llama__pooling_type": 3, "tokenizer__ggml__add_eos_token": True}
    file = write_tiny_llama(tmp_path / "closing.gguf", **fields)
    text = " ".join(TEXTS * 3)
    with chaski.load(file, context=8) as model:
        ids = model.tokenize(text)
        assert ids[-1] in model.tokenizer.eos_ids
        expected = model.embed([[*ids[:7], ids[-1]], ids[:3]])
        np.testing.assert_array_equal(model.embed([text, ids[:3]], truncate=True), expected)
        np.testing.assert_array_equal(model.embed([ids[:-1]], truncate=True), model.embed([ids[:8]]))
    for _ in create(Store(tmp_path), ModelName.parse("closing"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), tmp_path) as server:
        asked = {"model": "closing", "input": [text, ids[:3]], "options": {"num_ctx": 8}}
        reply = server.post("/api/embed", asked).json
    np.testing.assert_array_equal(np.float32(reply["embeddings"]), expected)
    assert reply["prompt_eval_count"] == 11


def test_vectors_have_so_many_numbers(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of inputs and vector size is limited, since all vectors are kept in memory."""
    monkeypatch.setattr("chaski.server.answering.vectors._MAX_NUMBERS", 1000)
    size = len(server.post("/api/embed", {"model": "vectors", "input": "x"}).json["embeddings"][0])
    most = 1000 // size
    assert server.post("/api/embed", {"model": "vectors", "input": ["x"] * most}).status == 200
    for route in ("/api/embed", "/v1/embeddings"):
        reply = server.post(route, {"model": "vectors", "input": ["x"] * (most + 1)})
        assert reply.status == 400
        assert f"send at most {most} items at once" in reply.body.decode()


@pytest.mark.long
@pytest.mark.timed
def test_many_vectors_are_written_while_others_are_answered(server: Running) -> None:
    """Once the event loop encoded them in one call that blocked the interpreter."""
    small = server.post("/api/embed", {"model": "vectors", "input": "x"})
    assert "content-length" in small.headers
    body = {"model": "vectors", "input": ["x"] * 6000}
    assert server.post("/api/embed", body).json["embeddings"] == small.json["embeddings"] * 6000
    waits = (longest_wait(server.port, "/api/embed", json.dumps(body).encode()) for _ in range(3))
    assert any(wait < 0.3 for wait in waits)
