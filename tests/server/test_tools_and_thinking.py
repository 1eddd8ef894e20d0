"""Thinking, calls, results and infilling with every client, and a real model in a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import ollama
import openai
import pydantic
import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.speaking_llama import write_speaking_llama

ASKED = "What is the weather?"
SUNNY = "sunny in Cusco"
THOUGHT = "I should look."
SAYINGS = {
    ASKED: [
        *("<think>", "I should ", "look.", "</think>", "Wait. "),
        *("<tool_call>", '{"name": "weather", ', '"arguments": {"city": "Cusco"}}', "</tool_call>"),
    ],
    SUNNY: ["It is ", "fine."],
    "<mid>": ["the ", "middle"],
    "Place?": ['{"city":', '"Lima"', "!"],
    "Call!": ['{"name":', '"wake up"', "?"],
}
FIM = "{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ else }}{{ .Prompt }}{{ end }}"
CITY: Any = {"type": "object", "properties": {"city": {"enum": ["Cusco"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
QUESTION: Any = [{"role": "user", "content": ASKED}]


class Weather(pydantic.BaseModel, extra="forbid"):
    city: Literal["Cusco"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server: `speaker` thinks, writes and calls; `coder` fills in."""
    folder = tmp_path_factory.mktemp("speaking")
    file = write_speaking_llama(folder / "speaking.gguf", SAYINGS)
    for name, template in (("speaker", None), ("coder", FIM)):
        recipe = Recipe(sources=[file], template=template, parameters={"num_predict": 100})
        for _ in create(Store(folder), ModelName.parse(name), recipe):
            pass
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, parallel=4), folder) as found:
        yield found
    patch.undo()


@pytest.fixture(scope="module")
def native(server: Running) -> Iterator[ollama.Client]:
    client = ollama.Client(server.url)
    yield client
    client._client.close()


@pytest.fixture(scope="module")
def chatter(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def service(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


# ---- ollama ----


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def test_ollama_calls_functions(native: ollama.Client) -> None:
    asked: Any = {"model": "speaker", "messages": QUESTION, "tools": [weather]}
    whole = native.chat(**asked, think=True)
    assert (whole.message.thinking, whole.message.content) == (THOUGHT, "Wait.")
    (call,) = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Cusco"})
    parts = list(native.chat(**asked, stream=True))
    assert len([part for part in parts if part.message.thinking]) >= 2
    assert "".join(part.message.thinking or "" for part in parts) == THOUGHT
    streamed = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments for call in streamed] == [{"city": "Cusco"}]
    result = {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}
    last = native.chat("speaker", [*QUESTION, whole.message, result], tools=[weather])
    assert (last.message.content, last.done_reason) == ("It is fine.", "stop")


def test_ollama_thinks_as_it_is_told(native: ollama.Client) -> None:
    for think in (None, True, "low", "high"):
        assert native.generate("speaker", ASKED, think=think).thinking == THOUGHT
    quiet = native.generate("speaker", ASKED, think=False)
    assert quiet.thinking is None
    assert quiet.response.startswith("Wait. ")
    assert native.show("speaker").capabilities == ["completion", "tools", "thinking"]


def test_a_format_begins_behind_the_thinking(native: ollama.Client) -> None:
    """It takes one pass: thoughts are not computed twice."""
    found = native.chat(
        "speaker", QUESTION, think=True, format=Weather.model_json_schema(), options={"temperature": 0}
    )
    assert found.message.thinking == THOUGHT
    assert Weather.model_validate_json(found.message.content) == Weather(city="Cusco")
    assert found.prompt_eval_count < 200


def test_a_format_holds_where_a_model_that_can_think_does_not(native: ollama.Client) -> None:
    """It begins its answer at once, which otherwise would not follow the schema."""
    asked: Any = {"model": "speaker", "messages": [{"role": "user", "content": "Place?"}]}
    for think in (None, True, False):
        found = native.chat(**asked, think=think, format=Weather.model_json_schema())
        assert (found.message.thinking, found.done_reason) == (None, "stop")
        assert Weather.model_validate_json(found.message.content) == Weather(city="Cusco")
    again = native.generate("speaker", "Place?", think=True, format=Weather.model_json_schema())
    assert Weather.model_validate_json(again.response) == Weather(city="Cusco")


def test_a_budget_that_ends_in_the_thought(native: ollama.Client) -> None:
    found = native.chat("speaker", QUESTION, think=True, format="json", options={"num_predict": 2})
    assert (found.message.content, found.done_reason) == ("", "length")
    assert found.message.thinking == "I should "


def test_ollama_fills_in(native: ollama.Client) -> None:
    """It uses the store's template, though the file's template, which supports more, writes conversations."""
    assert native.show("coder").capabilities == ["completion", "tools", "thinking", "insert"]
    assert native.generate("coder", "before", suffix="after").response == "the middle"
    parts = native.generate("coder", "before", suffix="after", stream=True)
    assert "".join(part.response for part in parts) == "the middle"


# ---- openai ----


def test_openai_calls_and_thinks(chatter: openai.OpenAI) -> None:
    asked: Any = {"model": "speaker", "messages": QUESTION, "tools": [TOOL]}
    whole = chatter.chat.completions.create(**asked).choices[0]
    assert (whole.message.reasoning, whole.message.content.strip()) == (THOUGHT, "Wait.")
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    strict: Any = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    with chatter.chat.completions.stream(**asked | {"tools": [strict]}) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.parsed_arguments == json.loads(call.function.arguments) == {"city": "Cusco"}
    result = {"role": "tool", "tool_call_id": call.id, "content": SUNNY}
    turns = [*QUESTION, whole.message, result]
    assert (
        chatter.chat.completions.create(**asked | {"messages": turns}).choices[0].message.content
        == "It is fine."
    )
    usage = chatter.chat.completions.create(**asked).usage
    assert usage.completion_tokens_details.reasoning_tokens == 3


def test_openai_choices_of_tools(chatter: openai.OpenAI) -> None:
    """The model itself would think and write text; the option forces the immediate call."""
    asked: Any = {"model": "speaker", "messages": QUESTION, "tools": [TOOL], "reasoning_effort": "none"}
    asked["temperature"] = 0
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        found = chatter.chat.completions.create(**asked, tool_choice=choice).choices[0]
        reason = "tool_calls" if choice == "required" else "stop"  # OpenAI's reason for a call by name
        assert (found.message.content or "", found.finish_reason) == ("", reason)
        assert json.loads(found.message.tool_calls[0].function.arguments) == {"city": "Cusco"}
    silent = chatter.chat.completions.create(**asked, tool_choice="none").choices[0]
    assert (silent.message.tool_calls, silent.finish_reason) == (None, "stop")
    thought = chatter.chat.completions.create(
        **asked | {"reasoning_effort": "high"}, tool_choice="required"
    ).choices[0]
    assert (thought.message.reasoning, len(thought.message.tool_calls)) == (THOUGHT, 1)


def test_openai_demands_calls_of_a_model_that_does_not_think(chatter: openai.OpenAI) -> None:
    quiet: Any = [{"role": "user", "content": "Call!"}]
    found = chatter.chat.completions.create(
        model="speaker", messages=quiet, tools=[TOOL], tool_choice="required"
    ).choices[0]
    assert (found.message.content or "", found.finish_reason) == ("", "tool_calls")
    assert json.loads(found.message.tool_calls[0].function.arguments) == {"city": "Cusco"}
    cut = chatter.chat.completions.create(
        model="speaker", messages=quiet, tools=[TOOL], tool_choice="required", max_tokens=3
    ).choices[0]
    assert (cut.message.tool_calls, cut.finish_reason) == (None, "length")


def test_openai_fills_in_and_parses(chatter: openai.OpenAI) -> None:
    assert chatter.completions.create(model="coder", prompt="a", suffix="b").choices[0].text == "the middle"
    parsed = chatter.chat.completions.parse(
        model="speaker", messages=QUESTION, response_format=Weather, temperature=0
    )
    assert parsed.choices[0].message.parsed == Weather(city="Cusco")
    assert parsed.choices[0].message.model_extra == {"reasoning": THOUGHT}


def test_openai_responses(chatter: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **TOOL["function"], "strict": False}
    asked: Any = {"model": "speaker", "input": ASKED, "tools": [tool]}
    whole = chatter.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.output[0].summary[0].text == THOUGHT
    with chatter.responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    call = streamed.output[2]
    assert json.loads(call.arguments) == {"city": "Cusco"}
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}]
    last = chatter.responses.create(**asked | {"input": result}, previous_response_id=streamed.id)
    assert last.output_text == "It is fine."
    forced = chatter.responses.create(
        **asked, tool_choice="required", reasoning={"effort": "none"}, temperature=0
    )
    assert [item.type for item in forced.output] == ["function_call"]


# ---- anthropic ----


def test_anthropic_calls_and_thinks(service: anthropic.Anthropic) -> None:
    tool: Any = {"name": "weather", "input_schema": CITY}
    asked: Any = {"model": "speaker", "messages": QUESTION, "max_tokens": 40, "tools": [tool]}
    thinking: Any = {"type": "enabled", "budget_tokens": 39}
    whole = service.messages.create(**asked, thinking=thinking)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert (whole.content[0].thinking, whole.stop_reason) == (THOUGHT, "tool_use")
    with service.messages.stream(**asked, thinking=thinking) as stream:
        final = stream.get_final_message()
    assert final.content[2].input == whole.content[2].input == {"city": "Cusco"}
    quiet = service.messages.create(**asked, thinking={"type": "disabled"})
    assert [block.type for block in quiet.content] == ["text", "tool_use"]
    result = {"type": "tool_result", "tool_use_id": final.content[2].id, "content": SUNNY}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": [result]},
    ]
    (said,) = service.messages.create(**asked | {"messages": turns}, thinking=thinking).content
    assert said.text == "It is fine."


def test_anthropic_choices_of_tools(service: anthropic.Anthropic) -> None:
    tool: Any = {"name": "weather", "input_schema": CITY}
    asked: Any = {"model": "speaker", "messages": QUESTION, "max_tokens": 100, "tools": [tool]}
    asked["extra_body"] = {"temperature": 0}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        (block,) = service.messages.create(**asked, tool_choice=choice).content
        assert (block.type, block.input) == ("tool_use", {"city": "Cusco"})
    silent = service.messages.create(**asked, tool_choice={"type": "none"})
    assert [block.type for block in silent.content] == ["text"]
    parsed = service.messages.parse(
        model="speaker",
        messages=QUESTION,
        max_tokens=100,
        output_format=Weather,
        extra_body={"temperature": 0},
    )
    assert parsed.parsed_output == Weather(city="Cusco")
