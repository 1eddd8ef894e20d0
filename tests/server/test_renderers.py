"""Stored models that name a renderer and a parser, over all APIs. The tokens of prompts are bytes here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from chaski.chat.requests import Generate
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Reply, Running, running
from tests.tiny_llama import write_tiny_llama

HELLO = {"role": "user", "content": "Hi"}
WEATHER = {
    "name": "get_weather",
    "description": "Weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>"
)
# Their parsers have the same names, except for these.
PARSERS = {"deepseek3.1": "deepseek3", "qwen3.8": "qwen3.5"}
NAMES = (
    "deepseek3.1",
    "glm-ocr",
    "olmo3-think",
    "qwen3-coder",
    "qwen3-vl-instruct",
    "qwen3-vl-thinking",
    "qwen3.5",
)

script = Script()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with a model for several renderers. A renderer has precedence over the file's template."""
    folder = tmp_path_factory.mktemp("renderers")
    data = write_tiny_llama(folder / "tiny.gguf", chat_template="{{ messages }}").read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    with running(Settings(address=SOMEWHERE), folder / "store", script.open) as found:
        found.post(f"/api/blobs/{digest}", data)
        for name in NAMES:
            named = {"model": name, "files": {"a.gguf": digest}, "template": "{{ .Prompt }}", "stream": False}
            named |= {"renderer": name, "parser": PARSERS.get(name, name)}
            assert found.post("/api/create", named).json == {"status": "success"}
        yield found


def chat(server: Running, model: str, says: str, **wishes: Any) -> tuple[str, dict[str, Any]]:
    """Return the prompt, and the message parsed from the answer."""
    script.pieces = list(says)
    asked = {"model": model, "messages": [HELLO], "stream": False, **wishes}
    reply = server.post("/api/chat", asked)
    assert reply.status == 200, reply.body
    return prompt(), reply.json["message"]


def prompt() -> str:
    last = [call for call in script.asked if isinstance(call, Generate)][-1]
    return bytes(last.prompt).decode()


def called(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    assert prompt().startswith("<|im_start|>system\nYou are Qwen, a helpful AI assistant")
    assert "<function>\n<name>get_weather</name>\n<description>Weather.</description>" in prompt()
    assert prompt().endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    return reply.json


def test_tools_over_all_apis(server: Running) -> None:
    script.pieces = [CALL[i : i + 3] for i in range(0, len(CALL), 3)]
    wanted = {"model": "qwen3-coder", "messages": [HELLO], "stream": False}
    tools = [{"type": "function", "function": WEATHER}]
    message = called(server.post("/api/chat", wanted | {"tools": tools}))["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Rome", "days": 2}
    choice = called(server.post("/v1/chat/completions", wanted | {"tools": tools}))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome", "days": 2}'
    schema = {"input_schema": WEATHER["parameters"], "name": "get_weather", "description": "Weather."}
    answered = called(server.post("/v1/messages", wanted | {"tools": [schema], "max_tokens": 99}))
    assert answered["stop_reason"] == "tool_use"
    assert answered["content"][0]["input"] == {"city": "Rome", "days": 2}


def test_models_that_think_do_unless_told_not_to(server: Running) -> None:
    written, message = chat(server, "qwen3.5", "Hm.\n</think>\n\nHi")
    assert written.endswith("<|im_start|>assistant\n<think>\n")
    assert (message["thinking"], message["content"]) == ("Hm.", "Hi")
    written, message = chat(server, "qwen3.5", "Hi", think=False)
    assert written.endswith("<think>\n\n</think>\n\n")
    assert message["content"] == "Hi"
    assert "thinking" not in message
    written, message = chat(server, "deepseek3.1", "Hm.</think>Hi")
    assert written == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"
    assert (message["thinking"], message["content"]) == ("Hm.", "Hi")


def test_a_model_that_always_thinks(server: Running) -> None:
    written, message = chat(server, "olmo3-think", "Hm.</think>Hi", think=False)
    assert written.endswith("<|im_start|>assistant\n<think>")
    assert (message["thinking"], message["content"]) == ("Hm.", "Hi")


def test_a_model_that_is_not_known_to_think_may_be_told_not_to(server: Running) -> None:
    assert chat(server, "glm-ocr", "Hi")[0].endswith("<|user|>\nHi<|assistant|>\n")
    written, message = chat(server, "glm-ocr", "Hi", think=False)
    assert written.endswith("<|user|>\nHi/nothink<|assistant|>\n<think></think>\n")
    assert message["content"] == "Hi"


def test_what_a_model_cannot_is_told(server: Running) -> None:
    asked = {"model": "qwen3-vl-instruct", "messages": [HELLO], "stream": False}
    assert server.post("/api/chat", asked | {"think": True}).error.endswith("does not support thinking")
    tools = [{"type": "function", "function": WEATHER}]
    reply = server.post("/api/chat", asked | {"model": "olmo3-think", "tools": tools})
    assert reply.status == 400
    assert reply.error.endswith("does not support tools")


def test_a_thought_that_has_begun_goes_on(server: Running) -> None:
    begun = [HELLO, {"role": "assistant", "content": "", "thinking": "I wonder"}]
    written, message = chat(server, "qwen3-vl-thinking", " why.\n</think>\n\nHi", messages=begun)
    assert written.endswith("<|im_start|>assistant\n<think>\nI wonder")
    assert (message["thinking"], message["content"]) == (" why.", "Hi")
    begun[1] = {"role": "assistant", "content": "It", "thinking": "I wonder"}
    written, message = chat(server, "qwen3-vl-thinking", " is", messages=begun)
    assert written.endswith("<think>\nI wonder\n</think>\n\nIt")
    assert message["content"] == " is"


def test_a_format_holds_behind_the_thinking(server: Running) -> None:
    def lead(model: str, *messages: Any, **fields: Any) -> Any:
        chat(server, model, "{}", format="json", messages=list(messages), **fields)
        return [call for call in script.asked if isinstance(call, Generate)][-1].options.get("format_thought")

    tags = {"opening": "<think>", "closing": "</think>", "header": "", "is_open": True, "repeats": False}
    assert lead("qwen3.5", HELLO) == tags
    assert lead("qwen3.5", HELLO, think=False) is None
    ended = {"end": "\n</think>\n\n", "may_call": False}
    assert lead("olmo3-think", HELLO, think=False) == tags | ended
    thought = {"role": "assistant", "content": "", "thinking": "Hm"}
    assert lead("qwen3.5", HELLO, thought) == tags
    assert lead("qwen3.5", HELLO, thought | {"content": "JSON: "}) is None


def test_generate_writes_a_conversation_too(server: Running) -> None:
    script.pieces = ["Hi"]
    server.post("/api/generate", {"model": "qwen3-coder", "prompt": "Hello", "system": "S", "stream": False})
    assert prompt() == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("qwen3-coder", ["completion", "tools"]),
        ("qwen3-vl-instruct", ["completion", "tools"]),
        ("qwen3.5", ["completion", "tools", "thinking"]),
        ("olmo3-think", ["completion", "thinking"]),
    ],
)
def test_show(server: Running, name: str, capabilities: list[str]) -> None:
    shown = server.post("/api/show", {"model": name}).json
    assert (shown["renderer"], shown["parser"]) == (name, name)
    assert f"RENDERER {name}\nPARSER {name}" in shown["modelfile"]
    assert shown["capabilities"] == capabilities
