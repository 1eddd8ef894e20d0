"""Routes of llama.cpp's server and of vLLM, with requests like their clients'."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from chaski.chat.requests import Generate
from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.runner.channels.messages import RenderChat
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

MESSAGES = [{"role": "user", "content": "how do I use fewer cores?"}]
INSERTION = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ .Prompt }}{{ end }}"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def fake(tmp_path: Path, script: Script) -> Iterator[Running]:
    """Run a server with a model that supports infilling."""
    file = write_tiny_llama(tmp_path / "filler.gguf", chat_template=None)
    for _ in create(Store(tmp_path), ModelName.parse("filler"), Recipe(sources=[file], template=INSERTION)):
        pass
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as server:
        yield server


def test_tokens_as_llama_cpp_tells_them(server: Running) -> None:
    asked: dict[str, Any] = {"model": "guide", "content": "hällo <|end|>"}
    known = server.post("/api/tokenize", asked).json["tokens"]
    bare = server.post("/tokenize", asked).json
    assert list(bare) == ["tokens"]
    assert server.post("/tokenize", asked | {"add_special": True}).json["tokens"] == known
    assert known[-len(bare["tokens"]) :] == bare["tokens"]
    pieces = server.post("/tokenize", asked | {"with_pieces": True}).json["tokens"]
    assert [each["id"] for each in pieces] == bare["tokens"]
    spelled = b"".join(
        each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces
    )
    assert spelled.decode().strip() == "hällo <|end|>"
    plain = server.post("/tokenize", asked | {"parse_special": False}).json["tokens"]
    assert len(plain) >= len(bare["tokens"])
    # The most recently used model answers.
    del asked["model"]
    assert server.post("/tokenize", asked).json == bare
    assert server.post("/detokenize", {"tokens": bare["tokens"]}).json["content"].startswith("hällo")
    for wrong in ({"tokens": ["x"]}, {"tokens": [10**7]}):
        reply = server.post("/detokenize", {"model": "guide"} | wrong)
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


def test_tokens_as_vllm_tells_them(server: Running) -> None:
    asked: dict[str, Any] = {"model": "guide", "prompt": "hello there"}
    known = server.post("/api/tokenize", {"model": "guide", "content": "hello there"}).json["tokens"]
    found = server.post("/tokenize", asked | {"return_token_strs": True}).json
    assert (found["tokens"], found["count"]) == (known, len(known))
    assert found["max_model_len"] > 100
    assert len(found["token_strs"]) == len(known)
    bare = server.post("/tokenize", asked | {"add_special_tokens": False}).json
    assert bare["token_strs"] is None
    assert known[-bare["count"] :] == bare["tokens"]
    assert server.post("/detokenize", {"model": "guide", "tokens": known}).json["prompt"] == "hello there"
    chat = server.post("/tokenize", {"model": "guide", "messages": MESSAGES}).json
    usage = server.post("/api/chat", {"model": "guide", "messages": MESSAGES, "stream": False}).json
    assert chat["count"] == len(chat["tokens"]) == usage["prompt_eval_count"]
    assert server.post("/tokenize", {"model": "guide"}).status == 400


def test_a_conversation_as_the_template_writes_it(server: Running) -> None:
    text = server.post("/apply-template", {"model": "guide", "messages": MESSAGES}).json["prompt"]
    assert MESSAGES[0]["content"] in text
    asked = {"model": "guide", "messages": MESSAGES}
    tokens = server.post("/tokenize", {"model": "guide", "prompt": text, "add_special_tokens": False}).json
    whole = server.post("/tokenize", asked).json["tokens"]
    assert whole[-tokens["count"] :] == tokens["tokens"]


def test_a_conversation_is_written_by_the_models_process(fake: Running, script: Script) -> None:
    """Templates take time and memory that the server must not spend."""
    asked = {"model": "filler", "messages": MESSAGES}
    text = fake.post("/apply-template", asked).json["prompt"]
    assert MESSAGES[0]["content"] in text
    call = script.asked[-1]
    assert isinstance(call, RenderChat)
    assert list(call.chat.messages) == MESSAGES


def test_properties_and_slots(server: Running) -> None:
    server.post("/api/generate", {"model": "guide"})
    props = server.get("/props").json
    assert (props["total_slots"], props["model_alias"]) == (8, "guide:latest")
    assert props["default_generation_settings"]["n_ctx"] > 100
    assert props["modalities"] == {"vision": False, "audio": False}
    assert props["chat_template"]
    assert props["chat_template_caps"] == {"supports_tools": False, "supports_tool_calls": False}
    slots = server.get("/slots?model=guide").json
    assert [slot["id"] for slot in slots] == list(range(8))
    assert not any(slot["is_processing"] for slot in slots)
    assert {key for slot in slots for key in slot} == {"id", "model", "n_ctx", "is_processing"}
    assert server.get("/slots?model=nobody").status == 404


def test_the_tokenizer_is_described_as_by_vllm(server: Running) -> None:
    """lm-evaluation-harness tokenizes by the server if it has this route and `/tokenize`."""
    server.post("/api/generate", {"model": "guide"})
    found = server.get("/tokenizer_info").json
    props = server.get("/props").json
    assert found["model"] == "guide:latest"
    assert found["eos_token"] == props["eos_token"] != ""
    assert found["model_max_length"] == props["default_generation_settings"]["n_ctx"]
    assert found["chat_template"]
    (eos,) = server.post("/tokenize", {"prompt": found["eos_token"], "add_special_tokens": False}).json[
        "tokens"
    ]
    assert type(eos) is int
    assert server.get("/tokenizer_info?model=nobody").status == 404


def test_without_a_model_in_memory_there_is_none_to_mean(fake: Running) -> None:
    assert fake.get("/slots").json == []
    assert fake.get("/props").status == fake.get("/tokenizer_info").status == 400
    reply = fake.post("/tokenize", {"content": "x"})
    assert (reply.status, "model is required" in reply.json["error"]["message"]) == (400, True)


def test_filling_in(fake: Running, script: Script) -> None:
    asked: dict[str, Any] = {"model": "filler", "input_prefix": "def f(", "input_suffix": "return x"}
    asked |= {"prompt": "x", "n_predict": 9, "top_k": 3, "seed": 1, "t_max_predict_ms": 500, "samplers": []}
    reply = fake.post("/infill", asked)
    assert (reply.json["content"], reply.json["stop"], reply.json["stop_type"]) == ("hello", True, "eos")
    assert reply.json["tokens_cached"] == 2
    assert reply.headers["x-chaski-ignored"] == "field t_max_predict_ms, field samplers"
    call = next(call for call in script.asked if isinstance(call, Generate))
    assert bytes(call.prompt).decode() == "<P>def f(<S>return x<M>x"
    options = call.options
    assert (options["num_predict"], options["top_k"], options["seed"]) == (9, 3, 1)
    lines = fake.post("/infill", asked | {"stream": True}).body.decode().split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["content"] for event in events] == ["hello", ""]
    assert [event["stop"] for event in events] == [False, True]
    for wrong in ({"input_extra": [{"text": "x"}]}, {"input_suffix": None}, {"top_k": "many"}):
        assert fake.post("/infill", asked | wrong).status == 400
    lacking = fake.post("/infill", asked | {"model": "guide"})
    assert (lacking.status, "does not support insert" in lacking.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_filling_in_by_the_tokens_of_a_file(tmp_path: Path, script: Script, names: tuple[str, ...]) -> None:
    """Files of llama.cpp's converter name these tokens, and have no infill template."""
    ids = {f"tokenizer__ggml__{name}_token_id": 10 + number for number, name in enumerate(names)}
    file = write_tiny_llama(tmp_path / "coder.gguf", **ids)
    for _ in create(Store(tmp_path), ModelName.parse("coder"), Recipe(sources=[file])):
        pass
    a, b, c = open_gguf(file).get("tokenizer.ggml.tokens", list[str])[10:13]
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as server:
        assert "insert" in server.post("/api/show", {"model": "coder"}).json["capabilities"]
        asked = {"model": "coder", "input_prefix": "1+", "input_suffix": ""}
        assert server.post("/infill", asked).status == 200
        native = {"model": "coder", "prompt": "1+", "suffix": "=3", "stream": False}
        assert server.post("/api/generate", native).status == 200
    texts = [bytes(call.prompt).decode() for call in script.asked if isinstance(call, Generate)]
    assert texts == [f"{a}1+{b}{c}", f"{a}1+{b}=3{c}"]


def test_what_a_response_was_asked(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": "guide", "max_output_tokens": 3}
        text = client.responses.create(input="hello", **asked)
        (item,) = client.responses.input_items.list(text.id).data
        assert (item.type, item.role) == ("message", "user")
        assert item.content[0].text == "hello"
        turns: Any = [{"role": "user", "content": f"question {number}"} for number in range(5)]
        several = client.responses.create(input=turns, **asked)
        listed = client.responses.input_items.list(several.id, limit=2)
        assert listed.has_more
        texts = [each.content[0].text for each in listed]
        assert texts == [f"question {number}" for number in reversed(range(5))]
        ascending = client.responses.input_items.list(several.id, order="asc", limit=1)
        assert ascending.data[0].content[0].text == "question 0"
        with pytest.raises(openai.BadRequestError, match="only responses with background=true"):
            client.responses.cancel(text.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.cancel("resp_none")
        with pytest.raises(openai.NotFoundError):
            client.responses.input_items.list("resp_none")
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=none"):
        path = f"/v1/responses/{text.id}/input_items?{query}"
        assert server.get(path, Authorization="Bearer any").status == 400


def test_keys_hold_for_these_routes_too(tmp_path: Path, script: Script) -> None:
    settings = Settings(address=SOMEWHERE, api_keys=("one", "two"))
    with running(settings, tmp_path, script.open) as server:
        for path in ("/props", "/slots", "/tokenizer_info", "/v1/responses/x/input_items"):
            assert server.get(path).status == 401
        for path in ("/tokenize", "/detokenize", "/infill", "/apply-template", "/rerank", "/v2/rerank"):
            assert server.post(path, {}).status == 401
        asked = {"model": "guide", "input": "a secret"}
        made = server.post("/v1/responses", asked, Authorization="Bearer one").json
        path = f"/v1/responses/{made['id']}/input_items"
        assert server.get(path, Authorization="Bearer one").status == 200
        assert server.get(path, Authorization="Bearer two").status == 404
        for shown in ("/props", "/slots"):
            assert b"secret" not in server.get(shown, Authorization="Bearer two").body
