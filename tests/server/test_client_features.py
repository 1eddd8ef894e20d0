"""Features of the packages `ollama`, `openai` and `anthropic` that other tests with them do not cover.

Covered here and in test_{ollama,openai,anthropic}_client, test_responses, test_embeddings, and with a real
model in test_tools_and_thinking:

ollama     chat (messages, tools from functions, stream, think, logprobs, format, options, keep_alive),
           generate (system, template, context, raw, suffix, stream, think, keep_alive), embed, embeddings,
           create (from_, files, template, license, system, parameters, messages, stream), create_blob,
           copy, delete, list, show, ps, pull, push; AsyncClient
openai     chat.completions create, stream, parse; completions create; embeddings create; models list,
           retrieve; responses create, stream, parse, retrieve, delete, input_tokens; with_raw_response;
           AsyncOpenAI
anthropic  messages create, stream, parse, count_tokens; with_raw_response; AsyncAnthropic
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pydantic
import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.thinker import WEATHER, client_of, fake, fresh, script
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama

__all__ = ["fake", "fresh", "script"]

QUESTION: Any = [{"role": "user", "content": "how do I use fewer cores?"}]
ANSWER = "Use `--threads"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Cusco"}}</tool_call>'
FIM = "<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>"


def weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: where
    """
    return f"sunny in {city}"


class Weather(pydantic.BaseModel):
    city: str


@pytest.fixture(scope="module")
def native(fake: Running) -> Iterator[ollama.Client]:
    client = ollama.Client(fake.url)
    yield client
    client._client.close()


def last_prompt(script: Script) -> str:
    return bytes(script.asked[-1].prompt).decode()


# ---- ollama ----


def test_ollama_tools_from_functions_and_thinking(native: ollama.Client, script: Script) -> None:
    script.pieces = ("<think>hm</think>", "Wait. ", CALL)
    asked: Any = {"model": "thinker", "messages": QUESTION, "tools": [weather], "think": True}
    whole = native.chat(**asked)
    assert (whole.message.thinking, whole.message.content) == ("hm", "Wait.")
    (call,) = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Cusco"})
    parts = [part.message for part in native.chat(**asked, stream=True)]
    assert "".join(part.thinking or "" for part in parts) == "hm"
    assert [call.function.arguments for part in parts for call in part.tool_calls or ()] == [
        {"city": "Cusco"}
    ]
    script.pieces = ("fine",)
    result = {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}
    native.chat("thinker", [*QUESTION, whole.message, result], tools=[weather])
    assert '{"city": "Cusco"}[tool]sunny in Cusco[assistant]' in last_prompt(script)
    assert "where" in last_prompt(script)  # the description of the argument


@pytest.mark.parametrize("think", [False, "low", "high", None])
def test_ollama_levels_of_thinking(native: ollama.Client, script: Script, think: Any) -> None:
    script.pieces = ("so",) if think is False else ("<think>hm</think>so",)
    found = native.generate("thinker", "why?", think=think)
    assert (found.thinking, found.response) == (None if think is False else "hm", "so")
    assert last_prompt(script).endswith("<think></think>") is (think is False)


def test_ollama_models_are_made_filled_in_and_removed(
    native: ollama.Client, script: Script, tmp_path: Path
) -> None:
    digest = native.create_blob(write_tiny_llama(tmp_path / "tiny.gguf"))
    made = native.create(
        "coder",
        files={"tiny.gguf": digest},
        template=FIM,
        license=["free"],
        parameters={"top_k": 3, "stop": ["<eot>"]},
        stream=True,
    )
    assert [step.status for step in made][-1] == "success"
    assert native.show("coder").capabilities == ["completion", "insert"]
    assert native.generate("coder", "a = ", suffix="+ b").response == "hello"
    assert last_prompt(script).endswith("<pre>a = <suf>+ b<mid>")
    assert script.asked[-1].options["top_k"] == 3
    with pytest.raises(ollama.ResponseError, match="does not support insert"):
        native.generate("thinker", "a = ", suffix="+ b")
    native.create(
        "told", from_="coder", system="Be kind.", messages=QUESTION, template="{{ .System }} {{ .Prompt }}"
    )
    assert "SYSTEM Be kind." in native.show("told").modelfile
    assert native.copy("told", "me/copied:v1").status == "success"
    assert {"coder:latest", "told:latest", "me/copied:v1"} <= {each.model for each in native.list().models}
    for name in ("coder", "told", "me/copied:v1"):
        assert native.delete(name).status == "success"
    with pytest.raises(ollama.ResponseError) as caught:
        native.delete("coder")
    assert caught.value.status_code == 404


def test_ollama_pull_and_push(tmp_path: Path, script: Script) -> None:
    data = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    with FakeRegistry().running() as registry:
        registry.put({"model": data})
        name = f"http://{registry.host}/me/model:1"
        settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
        with running(settings, tmp_path / "store", script.open) as server:
            client = ollama.Client(server.url)
            steps = list(client.pull(name, insecure=True, stream=True))
            assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
            assert any(step.total == step.completed == len(data) for step in steps)
            target = name.replace("model:1", "copy:2")
            client.copy(name, target)
            assert client.push(target, insecure=True).status == "success"
            client._client.close()
        assert registry.manifests["me/copy:2"] == registry.manifests["me/model:1"]


def test_ollama_from_an_event_loop(server: Running) -> None:
    async def ask() -> tuple[str, str]:
        client = ollama.AsyncClient(server.url)
        asked: Any = {"model": "guide", "messages": QUESTION, "options": {"temperature": 0, "num_predict": 8}}
        whole = await client.chat(**asked)
        parts = [part.message.content async for part in await client.chat(**asked, stream=True)]
        await client._client.aclose()
        return whole.message.content, "".join(parts)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
    assert whole.startswith("Use")


# ---- openai ----


def test_openai_helpers(fake: Running, script: Script) -> None:
    with client_of(fake) as client:
        script.pieces = ("<think>hm</think>Wait. ", CALL)
        tool: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        with client.chat.completions.stream(model="thinker", messages=QUESTION, tools=[tool]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion().choices[0]
        assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
        assert final.message.tool_calls[0].function.parsed_arguments == {"city": "Cusco"}
        script.pieces = ('{"city": "Lima"}',)
        parsed = client.chat.completions.parse(model="thinker", messages=QUESTION, response_format=Weather)
        assert parsed.choices[0].message.parsed == Weather(city="Lima")
        raw = client.chat.completions.with_raw_response.create(model="thinker", messages=QUESTION)
        assert (raw.status_code, raw.parse().object) == (200, "chat.completion")
        asked: Any = {"model": "thinker", "input": "why?", "instructions": "Be kind."}
        count = client.responses.input_tokens.count(**asked).input_tokens
        assert count == client.responses.create(**asked).usage.input_tokens


def test_openai_from_an_event_loop(server: Running) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            stream = await client.chat.completions.create(
                model="guide", messages=QUESTION, temperature=0, max_tokens=8, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask()).startswith("Use")


# ---- anthropic ----


@pytest.fixture(scope="module")
def service(fake: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fake.url, api_key="any", max_retries=0) as client:
        yield client


def test_anthropic_choices_of_tools(service: anthropic.Anthropic, script: Script) -> None:
    tool: Any = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
    asked: Any = {"model": "thinker", "messages": QUESTION, "max_tokens": 50, "tools": [tool]}
    script.pieces = ('{"name":"weather","arguments":{"city":"Quito"}}',)
    choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "weather"}]
    for choice in choices:
        (block,) = service.messages.create(**asked, tool_choice=choice).content
        assert (block.type, block.input) == ("tool_use", {"city": "Quito"})
    script.pieces = (CALL, CALL)
    choices = [({"type": "auto"}, 2), ({"type": "auto", "disable_parallel_tool_use": True}, 1)]
    for choice, count in choices:
        answer = service.messages.create(**asked, tool_choice=choice)
        assert [block.type for block in answer.content] == ["tool_use"] * count
    (block,) = service.messages.create(**asked, tool_choice={"type": "none"}).content
    assert block.type == "text"


def test_anthropic_helpers(service: anthropic.Anthropic, script: Script) -> None:
    script.pieces = ('{"city": ', '"Lima"}')
    asked: Any = {"model": "thinker", "messages": QUESTION, "max_tokens": 50, "metadata": {"user_id": "me"}}
    parsed = service.messages.parse(**asked, output_format=Weather)
    assert parsed.parsed_output == Weather(city="Lima")
    assert script.asked[-1].options["format"]["required"] == ["city"]
    service.messages.create(**asked, thinking={"type": "adaptive"}, output_config={"effort": "xhigh"})
    with pytest.raises(anthropic.BadRequestError, match="effort 'huge'"):
        service.messages.create(**asked, extra_body={"output_config": {"effort": "huge"}})
    raw = service.messages.with_raw_response.create(**asked)
    assert (raw.status_code, raw.parse().type) == (200, "message")
    kinds = [event.type for event in service.messages.create(**asked, stream=True)]
    assert kinds == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]


def test_anthropic_from_an_event_loop(server: Running) -> None:
    async def ask() -> str:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any") as client:
            asked: Any = {"model": "guide", "messages": QUESTION, "max_tokens": 8}
            async with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()).startswith("Use")
