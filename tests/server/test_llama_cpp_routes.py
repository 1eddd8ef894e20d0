"""llama-server's own routes, with the requests and replies that its documentation shows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chaski.chat.requests import Generate
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Reply, Running, running
from tests.tiny_llama import write_tiny_llama

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(autouse=True)
def fresh(script: Script) -> None:
    script.pieces, script.reason, script.asked = ("hello",), "stop", []


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """Run a server with a model that writes the answers of `script`, and one that embeds."""
    folder = tmp_path_factory.mktemp("fake")
    for name, options in (("talker", {}), ("vectors", {"llama__pooling_type": 1})):
        file = write_tiny_llama(folder / f"{name}.gguf", **options)
        recipe = Recipe(sources=[file], parameters={"top_k": 7} if name == "talker" else {})
        for _ in create(Store(folder), ModelName.parse(name), recipe):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        server.post("/api/generate", {"model": "talker"})
        yield server


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with a tiny model that computes, in memory."""
    folder = tmp_path_factory.mktemp("real")
    file = write_tiny_llama(folder / "tiny.gguf", llama__context_length=64)
    for _ in create(Store(folder), ModelName.parse("tiny"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), folder) as server:
        server.post("/api/generate", {"model": "tiny"})
        yield server


def events_of(reply: Reply) -> list[Any]:
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line]


def calls(script: Script) -> list[Generate]:
    return [call for call in script.asked if isinstance(call, Generate)]


# ---- /completion ----


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion(fake: Running, script: Script, path: str) -> None:
    """The prompt is used as it is, and the model need not be named."""
    script.pieces = ("hello ", "there\n")
    asked = {"prompt": "Building a website can be", "n_predict": 128, "cache_prompt": True, "id_slot": -1}
    reply = fake.post(path, asked).json
    assert (reply["content"], reply["stop"], reply["stop_type"]) == ("hello there\n", True, "eos")
    assert (reply["index"], reply["model"], reply["id_slot"]) == (0, "talker:latest", -1)
    assert (reply["prompt"], reply["tokens"], reply["has_new_line"]) == (asked["prompt"], [], True)
    assert (reply["stopping_word"], reply["truncated"]) == ("", False)
    assert reply["tokens_evaluated"] == len(asked["prompt"])
    timings = reply["timings"]
    assert {"cache_n", "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n"} <= timings.keys()
    assert timings["predicted_n"] == reply["tokens_predicted"]
    (call,) = calls(script)
    assert bytes(call.prompt).decode() == asked["prompt"]
    assert call.options["num_predict"] == 128


def test_the_settings_of_an_answer(fake: Running) -> None:
    """They are those of the request, then those of the model, then chaski's."""
    asked = {"prompt": "x", "temperature": 0.1, "n_keep": 3, "stop": ["\n"], "max_tokens": 5}
    shown = fake.post("/completion", asked).json["generation_settings"]
    expected = {"temperature": 0.1, "top_k": 7, "top_p": 0.9, "n_keep": 3, "n_predict": 5, "stop": ["\n"]}
    assert {name: shown[name] for name in expected} == expected
    assert (shown["seed"], shown["n_ctx"]) == (-1, 4000)
    params = fake.get("/props").json["default_generation_settings"]["params"]
    assert (params["top_k"], params["temperature"]) == (7, 0.8)


def test_a_stream_ends_with_an_event_without_content(fake: Running, script: Script) -> None:
    script.pieces = ("a", "b\n", "c")
    *pieces, last = events_of(fake.post("/completion", {"prompt": "x", "stream": True}))
    assert [piece["content"] for piece in pieces] == ["a", "b\n", "c"]
    assert not any(piece["stop"] for piece in pieces)
    assert [piece["tokens_evaluated"] for piece in pieces] == [1, 1, 1]
    assert (last["content"], last["stop"], last["has_new_line"]) == ("", True, True)
    assert last["generation_settings"]["top_k"] == 7


def test_several_prompts_and_answers_are_a_list(fake: Running, script: Script) -> None:
    asked: dict[str, Any] = {"prompt": ["one", [1, 2], {"prompt_string": "three"}], "n_cmpl": 2}
    found = fake.post("/completion", asked).json
    assert [each["index"] for each in found] == list(range(6))
    prompts = sorted(bytes(call.prompt).decode() for call in calls(script))
    assert prompts == ["\x01\x02", "\x01\x02", "one", "one", "three", "three"]
    streamed = events_of(fake.post("/completion", asked | {"stream": True}))
    assert sorted(each["index"] for each in streamed if each["stop"]) == list(range(6))
    single = fake.post("/completion", {"prompt": ["one"]}).json
    assert single["content"] == "hello"


def test_tokens_and_texts_of_one_prompt(fake: Running, script: Script) -> None:
    reply = fake.post("/completion", {"prompt": [12, 34, "string", 56, 78]}).json
    (call,) = calls(script)
    assert bytes(call.prompt) == b"\x0c\x22string\x38\x4e"
    assert reply["tokens_evaluated"] == 10


def test_media_stand_where_their_markers_are(fake: Running) -> None:
    """A model that does not see refuses them."""
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 8).decode()
    asked: Any = {"prompt_string": "What is <__media__>?", "multimodal_data": [png]}
    refused = fake.post("/completion", {"prompt": asked})
    assert (refused.status, "vision" in refused.json["error"]["message"]) == (400, True)
    asked["prompt_string"] = "What is it?"
    refused = fake.post("/completion", {"prompt": asked})
    assert "prompt_string has 0 times <__media__>" in refused.json["error"]["message"]


def test_the_fields_that_are_asked_for(fake: Running) -> None:
    asked = {"prompt": "x", "response_fields": ["content", "generation_settings/top_k", "nothing/here"]}
    assert fake.post("/completion", asked).json == {"content": "hello", "top_k": 7}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "prompt is required"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": [1, 2.5]}, "prompt must be"),
        ({"prompt": [["a", None]]}, "prompt must be"),
        ({"prompt": ["x"] * 257}, "at most 256"),
        ({"prompt": [10**9]}, "token"),
        ({"prompt": "x", "n_cmpl": 0}, "n_cmpl is 0"),
        ({"prompt": "x", "n_probs": 21}, "n_probs is 21"),
        ({"prompt": "x", "top_k": "many"}, "top_k must be an integer"),
        ({"prompt": "x", "grammar": "root ::= x", "json_schema": {}}, "exclude each other"),
        ({"prompt": "x", "logit_bias": [["text", 1]]}, "name it by its id"),
        ({"prompt": "x", "logit_bias": [[1, 2, 3]]}, "list of pairs"),
        ({"prompt": "x", "mirostat": 2}, "mirostat is not supported"),
        ({"prompt": "x", "model": "nobody"}, "not found"),
    ],
)
def test_wrong_completions(fake: Running, body: dict[str, Any], text: str) -> None:
    reply = fake.post("/completion", body)
    assert reply.status in (400, 404)
    assert text in reply.json["error"]["message"]


def test_unknown_fields_are_named(fake: Running) -> None:
    reply = fake.post("/completion", {"prompt": "x", "samplers": ["top_k"], "t_max_predict_ms": 5})
    assert reply.headers["x-chaski-ignored"] == "field samplers, field t_max_predict_ms"


def test_tokens_and_probabilities(real: Running) -> None:
    asked = {"prompt": "hello", "n_predict": 4, "temperature": 0, "n_probs": 2, "return_tokens": True}
    reply = real.post("/completion", asked).json
    assert (reply["tokens_predicted"], reply["stop_type"], reply["truncated"]) == (4, "limit", False)
    scores = reply["completion_probabilities"]
    assert [score["id"] for score in scores] == reply["tokens"]
    assert len(scores) == 4
    for score in scores:
        best = score["top_logprobs"][0]
        assert len(score["top_logprobs"]) == 2
        assert (best["id"], best["logprob"]) == (score["id"], score["logprob"])
        assert bytes(score["bytes"]).decode(errors="replace") == score["token"]
    *pieces, last = events_of(real.post("/completion", asked | {"stream": True}))
    assert [token for piece in pieces for token in piece["tokens"]] == reply["tokens"]
    assert "".join(piece["content"] for piece in pieces) == reply["content"]
    assert [each for piece in pieces for each in piece["completion_probabilities"]] == scores
    assert "completion_probabilities" not in last
    tokens = real.post("/tokenize", {"content": "hello", "add_special": True}).json["tokens"]
    again = real.post("/completion", asked | {"prompt": tokens}).json
    assert (again["content"], again["prompt"]) == (reply["content"], "hello")


def test_biases_as_pairs_and_as_an_object(real: Running) -> None:
    asked = {"prompt": "hello", "n_predict": 1, "temperature": 0, "return_tokens": True}
    (usual,) = real.post("/completion", asked).json["tokens"]
    for made in ([[65, 100]], {"65": 100}):
        assert real.post("/completion", asked | {"logit_bias": made}).json["tokens"] == [65]
    banning: tuple[object, ...] = ([[usual, False]], {str(usual): False})
    for banned in banning:
        assert real.post("/completion", asked | {"logit_bias": banned}).json["tokens"] != [usual]


def test_a_grammar_holds_an_answer(real: Running) -> None:
    for constraint in ({"grammar": 'root ::= "yes"'}, {"json_schema": {"const": "yes"}}):
        reply = real.post("/completion", {"prompt": "x", "n_predict": 9, **constraint}).json
        assert reply["content"].strip('"') == "yes"


def test_no_tokens_are_predicted_where_none_are_asked_for(real: Running) -> None:
    reply = real.post("/completion", {"prompt": "hello", "n_predict": 0}).json
    assert (reply["content"], reply["stop"]) == ("", True)


def test_the_context_is_a_limit(real: Running) -> None:
    """As in llama-server, nothing is left out of a prompt, and an answer ends when the context is full."""
    reply = real.post("/completion", {"prompt": "x", "ignore_eos": True}).json
    assert (reply["stop_type"], reply["truncated"]) == ("limit", True)
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] in (64, 65)
    refused = real.post("/completion", {"prompt": "x" * 1000})
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")


# ---- vectors ----


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_vectors_in_llama_servers_form(fake: Running, path: str) -> None:
    for body in ({"content": "hello"}, {"input": "hello"}, {"content": [104, 105]}):
        (found,) = fake.post(path, {"model": "vectors", **body}).json
        assert (found["index"], np.shape(found["embedding"])) == (0, (1, 4))
    several = fake.post(path, {"model": "vectors", "content": ["a", [104, 105]]}).json
    assert [each["index"] for each in several] == [0, 1]
    assert fake.post(path, {"model": "vectors"}).status == 400


def test_norms_of_vectors(fake: Running) -> None:
    """The fake model's vectors are ones."""
    for norm, value in ((-1, 1.0), (0, 32760.0), (1, 0.25), (3, 4 ** (-1 / 3))):
        asked = {"model": "vectors", "content": "a", "embd_normalize": norm}
        (found,) = fake.post("/embedding", asked).json
        assert found["embedding"][0] == pytest.approx([value] * 4)


# ---- routes that share a handler ----


def test_chats_need_no_model(fake: Running) -> None:
    reply = fake.post("/chat/completions", {"messages": MESSAGES}).json
    assert (reply["object"], reply["model"]) == ("chat.completion", "talker:latest")
    assert reply["choices"][0]["message"]["content"] == "hello"
    count = fake.post("/chat/completions/input_tokens", {"messages": MESSAGES}).json
    assert count == {"object": "response.input_tokens", "input_tokens": reply["usage"]["prompt_tokens"]}
    assert fake.post("/v1/chat/completions/input_tokens", {"messages": MESSAGES}).json == count


def test_other_names_of_routes(fake: Running) -> None:
    for path in ("/models", "/models/talker"):
        assert fake.get(path).json == fake.get(f"/v1{path}").json
    assert fake.get("/v1/health").json["status"] == "ok"
    response = fake.post("/responses", {"model": "talker", "input": "hello"}).json
    assert response["object"] == "response"
    assert fake.post("/responses/input_tokens", {"model": "talker", "input": "x"}).json["input_tokens"] > 0
    for path in ("/reranking", "/v1/reranking"):
        refused = fake.post(path, {"model": "talker", "query": "x", "documents": ["y"]})
        assert "does not support rerank" in refused.json["error"]["message"]


def test_loading_and_unloading(fake: Running) -> None:
    assert fake.post("/models/load", {"model": "vectors"}).json == {"success": True}
    assert "vectors:latest" in [each["name"] for each in fake.get("/api/ps").json["models"]]
    assert fake.post("/models/unload", {"model": "vectors"}).json == {"success": True}
    assert "vectors:latest" not in [each["name"] for each in fake.get("/api/ps").json["models"]]
    assert fake.post("/models/load", {"model": "nobody"}).status == 404


# ---- vLLM's ----


def test_the_state_of_the_server_as_vllm_tells_it(fake: Running) -> None:
    from chaski import __version__

    assert fake.get("/version").json == {"version": __version__}
    assert fake.get("/ping").status == 200
    assert fake.get("/load").json == {"server_load": 0}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_pairs(fake: Running, path: str) -> None:
    """A model that only embeds scores by the cosine of its vectors."""
    for left, right, count in (("a", "b", 1), ("a", ["b", "c"], 2), (["a", "b"], ["c", "d"], 2)):
        reply = fake.post(path, {"model": "vectors", "text_1": left, "text_2": right}).json
        assert [each["index"] for each in reply["data"]] == list(range(count))
        assert [each["object"] for each in reply["data"]] == ["score"] * count
        assert reply["usage"]["prompt_tokens"] > 0
    refused = fake.post(path, {"model": "vectors", "text_1": ["a", "b"], "text_2": ["c"]})
    assert (refused.status, "1 or as many" in refused.json["error"]["message"]) == (400, True)
    assert fake.post(path, {"model": "vectors", "text_1": "a"}).status == 400
