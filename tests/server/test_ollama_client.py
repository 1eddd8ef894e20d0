"""The `ollama` package against a real server with a real model."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import pytest

from tests.server.running import Running

QUESTION = [{"role": "user", "content": "how do I use fewer cores?"}]
GREEDY = {"temperature": 0, "num_predict": 16}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[ollama.Client]:
    client = ollama.Client(server.url)
    yield client
    client._client.close()


def test_chat_whole_and_streamed_are_the_same(client: ollama.Client) -> None:
    whole = client.chat("guide", QUESTION, options=GREEDY)
    *pieces, last = client.chat("guide", QUESTION, options=GREEDY, stream=True)
    assert whole.message.content.startswith("Use `--threads")
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert len(pieces) > 5
    assert all(not piece.done and piece.message.role == "assistant" for piece in pieces)
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 16)
    assert whole.prompt_eval_count == last.prompt_eval_count > 10
    assert whole.total_duration > 0 < whole.eval_duration


def test_generate_gives_a_context_that_goes_on(client: ollama.Client) -> None:
    first = client.generate("guide", "how do I use fewer cores?", options=GREEDY)
    assert first.response.startswith("Use `--threads")
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    second = client.generate("guide", "and more?", context=first.context, options=GREEDY)
    assert list(second.context[: len(first.context)]) == list(first.context)
    assert second.prompt_eval_count > first.prompt_eval_count


def test_raw_prompts_are_taken_as_they_are(client: ollama.Client) -> None:
    answer = client.generate("guide", "Llamas carry", raw=True, options=GREEDY)
    assert answer.context is None
    assert answer.prompt_eval_count < 8
    with pytest.raises(ollama.ResponseError, match="raw mode does not support template, system, or context"):
        client.generate("guide", "x", raw=True, system="be kind")


def test_system_template_and_stop(client: ollama.Client) -> None:
    asked = {"model": "guide", "prompt": "how do I use fewer cores?", "options": GREEDY}
    plain = client.generate(**asked)
    told = client.generate(**asked, system="You are a llama.")
    assert told.prompt_eval_count > plain.prompt_eval_count
    written = client.generate(**asked, template="{{ .Prompt }}")
    assert written.prompt_eval_count < plain.prompt_eval_count
    stopped = client.generate(**asked | {"options": GREEDY | {"stop": ["--"]}})
    assert (stopped.response, stopped.done_reason) == ("Use `", "stop")


def test_logprobs_name_the_tokens(client: ollama.Client) -> None:
    answer = client.chat("guide", QUESTION, options=GREEDY, logprobs=True, top_logprobs=3)
    assert "".join(each.token for each in answer.logprobs) == answer.message.content
    for each in answer.logprobs:
        assert each.logprob <= 0
        assert [top.logprob for top in each.top_logprobs] == sorted(
            (top.logprob for top in each.top_logprobs), reverse=True
        )
        assert each.top_logprobs[0].token == each.token  # greedy
    with pytest.raises(ollama.ResponseError, match="top_logprobs must be between 0 and 20") as caught:
        client.chat("guide", QUESTION, top_logprobs=21)
    assert caught.value.status_code == 400


def test_a_format_is_followed(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"cores": {"enum": [1, 2]}},
        "required": ["cores"],
        "additionalProperties": False,
    }
    answer = client.chat("guide", QUESTION, format=schema, options=GREEDY | {"num_predict": 60})
    assert answer.message.content.replace(" ", "").replace("\n", "") in ('{"cores":1}', '{"cores":2}')


@pytest.mark.parametrize("format", [3, "xml", {"type": "nonsense"}])
def test_a_format_that_is_none(server: Running, format: object) -> None:
    reply = server.post("/api/chat", {"model": "guide", "messages": QUESTION, "format": format})
    assert reply.status == 400
    assert "format" in reply.error


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"think": True}, '"guide" does not support thinking'),
        (
            {"tools": [{"function": {"name": "f"}}]},
            "registry.ollama.ai/library/guide:latest does not support tools",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}]},
            "does not support vision",
        ),
        ({"options": {"temperature": "hot"}}, 'option "temperature" must be of type float32'),
        ({"options": {"num_ctx": -5}}, "option num_ctx is -5"),
        ({"options": {"num_keep": -1}}, "num_keep"),
        ({"keep_alive": "soon"}, 'time: invalid duration "soon"'),
    ],
)
def test_what_cannot_be_is_refused(server: Running, fields: dict[str, object], text: str) -> None:
    reply = server.post("/api/chat", {"model": "guide", "messages": QUESTION} | fields)
    assert reply.status == 400
    assert text in reply.error


def test_models_that_are_not_there(client: ollama.Client, server: Running) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nobody' not found") as caught:
        client.chat("nobody", QUESTION)
    assert caught.value.status_code == 404
    assert server.post("/api/chat", {"messages": QUESTION}).error == "model is required"
    assert server.post("/api/generate", {"model": "../x", "prompt": "x"}).status == 400
    with pytest.raises(ollama.ResponseError, match="does not support embedding"):
        client.embed("guide", "text")


def test_a_stored_model_brings_its_settings(client: ollama.Client) -> None:
    answer = client.chat("helper", QUESTION)
    assert answer.eval_count == 24
    assert answer.message.content.startswith("Use `--threads")


def test_what_is_there_and_what_runs(client: ollama.Client) -> None:
    listed, guide = client.list().models
    assert guide.model == "guide:latest"
    assert (listed.model, listed.details.family, listed.details.quantization_level) == (
        "helper:latest",
        "llama",
        "Q8_0",
    )
    shown = client.show("helper")
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo["llama.block_count"] == 3
    assert "temperature" in shown.parameters
    assert "FROM helper:latest" in shown.modelfile
    client.generate("helper", keep_alive=-1)
    assert {each.model: each.context_length for each in client.ps().models}["helper:latest"] == 1024
    assert client.generate("helper", keep_alive=0).done_reason == "unload"
    assert "helper:latest" not in {each.model for each in client.ps().models}


def test_loading_without_a_question(client: ollama.Client) -> None:
    assert client.generate("guide").done_reason == "load"
    answer = client.chat("guide")
    assert (answer.done_reason, answer.message.content) == ("load", "")


def test_truncation_is_told(server: Running) -> None:
    long = [{"role": "user", "content": "cores and threads " * 100}, {"role": "assistant", "content": "yes"}]
    asked = {"model": "guide", "messages": long * 4 + QUESTION, "stream": False, "options": GREEDY}
    told = server.post("/api/chat", asked).json
    assert told["truncated"] is True
    assert told["prompt_dropped_count"] > 300
    assert told["context_length"] == 1024 > told["prompt_eval_count"]
    prompt = long[0]["content"] * 4
    uncut = {"model": "guide", "truncate": False, "stream": False}
    for path, body in (
        ("/api/chat", asked),
        ("/api/generate", {"prompt": prompt}),
        ("/api/generate", {"prompt": prompt, "raw": True}),
        ("/api/generate", {"prompt": "more", "context": [5] * 1200}),
    ):
        refused = server.post(path, body | uncut)
        assert refused.status == 400
        assert refused.error.startswith("the input length exceeds the context length: the prompt has ")


def test_what_was_cached_is_told(server: Running) -> None:
    asked = {"model": "guide", "prompt": "how do I use fewer cores?", "stream": False, "options": GREEDY}
    server.post("/api/generate", asked)
    told = server.post("/api/generate", asked).json
    assert told["prompt_cached_count"] == told["prompt_eval_count"] - 1


def test_tokens_and_back(server: Running) -> None:
    text = "how do I use fewer cores?"
    tokens = server.post("/api/tokenize", {"model": "guide", "content": text}).json["tokens"]
    assert len(tokens) > 3
    assert server.post("/api/detokenize", {"model": "guide", "tokens": tokens}).json["content"] == text
    assert server.post("/api/detokenize", {"model": "guide", "tokens": [1 << 40]}).status == 400


def test_a_smaller_context_never_reloads(server: Running) -> None:
    asked = {"model": "guide", "prompt": "hello", "stream": False}
    server.post("/api/generate", asked | {"options": GREEDY | {"num_ctx": 512}})
    pids = [loaded.worker.pid for loaded in server.services.models.loaded]
    for context in (None, 64, 100_000):
        assert server.post("/api/generate", asked | {"options": GREEDY | {"num_ctx": context}}).status == 200
    assert [loaded.worker.pid for loaded in server.services.models.loaded] == pids
