"""Renderers: each writes its model's training format, and its parser reads this format.

`renderers.json` contains the outputs of the makers' own templates (`tools.fixtures.make_renderers`).
`renderer_cases.toml` contains texts for the other renderers, and for cases that those templates do not
define.
"""

from __future__ import annotations

import json
import time
import tomllib
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chaski.text.parsers import Content, FoundCall, Thought
from chaski.text.parsers.formats import FORMATS, parser_for
from chaski.text.template import renderers
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.renderers import RENDERERS, find_renderer

DATA = Path(__file__).parents[1] / "data"
PUBLISHED = json.loads((DATA / "renderers.json").read_text())
CONVERSATIONS = PUBLISHED["conversations"]
# Differences from the maker's template, with and without thinking, and their reasons.
THINKS_ALOUD = "a thought follows results, as in Ollama: without the sign the model thinks aloud"
WORDS_FIRST = "words stand before the calls that came behind them, and the turn stays open"
ALL_CALLS = "all calls are written; and words before them are for the user, no analysis"
DIFFERENT = {
    ("gemma4-large", "called", True): THINKS_ALOUD,
    ("gemma4-large", "called without a thought", True): THINKS_ALOUD,
    ("gemma4-large", "twice", True): THINKS_ALOUD,
    ("gemma4-large", "called and told", True): WORDS_FIRST,
    ("gemma4-large", "called and told", False): WORDS_FIRST,
    ("harmony", "called and told", True): ALL_CALLS,
    ("harmony", "called and told", False): ALL_CALLS,
}

HELLO = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be kind."}
LATER = {"role": "system", "content": "Now French."}
YES = {"role": "assistant", "content": "Yes?", "thinking": "Hm."}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "What.", "enum": ["sun"]},
                "long": {"type": "integer"},
            },
            "required": ["at"],
        },
    },
}
CALL = {"id": "1", "function": {"name": "look", "arguments": {"at": "sun", "long": 2}}}
PAUSE = {"id": "2", "function": {"name": "rest", "arguments": {}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL, PAUSE]}
RESULTS = [{"role": "tool", "content": "Bright."}, {"role": "tool", "content": "Done."}]
CALLED = [HELLO, CALLS, *RESULTS]


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(RENDERERS[name].source, "", "")


def written(name: str, messages: list[Any], tools: Any = None, **options: Any) -> str:
    return template(name).render(messages, tools=tools, **options)


@pytest.mark.parametrize(("name", "conversation", "thinks", "has_tools", "text"), PUBLISHED["cases"])
def test_as_published(name: str, conversation: str, thinks: bool, has_tools: bool, text: str) -> None:
    tools = [{"type": "function", "function": tool} for tool in PUBLISHED["tools"]] if has_tools else None
    ours = written(name, CONVERSATIONS[conversation], tools, enable_thinking=thinks)
    is_same = ours.replace(datetime.now().strftime("%Y-%m-%d"), "{today}") == text
    assert is_same == ((name, conversation, thinks) not in DIFFERENT)


CASES = tomllib.loads((DATA / "renderer_cases.toml").read_text())["case"]
MESSAGES: dict[str, list[Any]] = {
    "hello": [HELLO],
    "told": [SYSTEM, HELLO],
    "answered": [HELLO, YES, HELLO],
    "answered plainly": [HELLO, {"role": "assistant", "content": "Yes?"}, HELLO],
    "told and answered": [SYSTEM, HELLO, YES, HELLO],
    "called": CALLED,
    "called with a thought": [HELLO, {**CALLS, "thinking": "Hm."}, *RESULTS],
    "told and called": [SYSTEM, *CALLED],
    "answered and called": [HELLO, YES, *CALLED],
    "told, answered and called": [SYSTEM, HELLO, YES, *CALLED],
    "told later, called with words": [HELLO, LATER, {**CALLS, "content": "I look."}, *RESULTS],
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['renderer']}-{case['messages']}")
def test_as_known(case: dict[str, Any]) -> None:
    think = case.get("think")
    options: dict[str, Any] = {} if think is None else {"enable_thinking": bool(think)}
    if isinstance(think, str):
        options["reasoning_effort"] = think
    tools = [TOOL] if case.get("tools") else None
    assert written(case["renderer"], MESSAGES[case["messages"]], tools, **options) == case["text"]


def test_what_lfm2_thought_before_is_left_out() -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>A"}
    turns = [HELLO, thought, HELLO, thought]
    forgotten = written("lfm2-thinking", turns, enable_thinking=False)
    assert forgotten.count("<think>hm</think>") == 1
    assert forgotten.endswith("<|im_start|>assistant\n<think>hm</think>A")  # which continues
    assert written("lfm2-thinking", turns, enable_thinking=True).count("<think>hm</think>") == 2
    assert written("lfm2", turns).count("<think>hm</think>") == 2


def test_values_of_all_kinds_are_written_as_json() -> None:
    arguments = {"yes": True, "none": None, "many": [1, {"a": "<b>"}]}
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    for name in ("qwen3-coder", "qwen3.5", "nemotron-3-nano", "glm-4.7", "glimmer"):
        text = written(name, [HELLO, call])
        assert all(f">{value}<" in text.replace("\n", "") for value in ("true", "null", '[1, {"a": "<b>"}]'))


def test_parameters_may_have_any_name() -> None:
    schema = {"type": "string"}
    names = ["description", "items", "keys", "properties", "required", "type"]
    parameters = {"type": "object", "properties": dict.fromkeys(names, schema)}
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}]
    for name in RENDERERS:
        if RENDERERS[name].parser != "olmo3-think":
            text = written(name, [HELLO], tools)
            assert all(
                text.count(word) > written(name, [HELLO], [TOOL]).count(word) for word in ("keys", "items")
            )
    written_names = ",".join(f'{word}:{{type:<|"|>STRING<|"|>}}' for word in names)
    assert f"properties:{{{written_names}}}" in written("gemma4", [HELLO], tools)


@pytest.mark.parametrize("name", ["cogito", "deepseek3.1"])
def test_what_the_system_says_goes_to_the_front(name: str) -> None:
    text = written(name, [SYSTEM, HELLO, YES, LATER, HELLO], enable_thinking=False)
    assert "Be kind.\n\nNow French.<｜User｜>Hi<｜Assistant｜>" in text
    assert text.count("Now French.") == 1
    assert written(name, [HELLO, SYSTEM]) == written(name, [SYSTEM, HELLO])


def answer_of(name: str, answer: dict[str, Any], thinks: bool) -> tuple[str, str]:
    """Return the prompt, and the model's text for the turn that follows it."""
    prompt = written(name, [HELLO], [TOOL], enable_thinking=thinks)
    later = written(name, [HELLO, answer], [TOOL], enable_thinking=thinks, add_generation_prompt=False)
    assert later.startswith(prompt)
    return prompt, later.removeprefix(prompt)


def read(name: str, prompt: str, answer: str, thinks: bool) -> list[Any]:
    parser = parser_for(RENDERERS[name].parser, [TOOL, {"function": {"name": "rest"}}], prompt, thinks)
    pieces = [piece for character in answer for piece in parser.feed(character)] + parser.flush()
    calls = [piece for piece in pieces if isinstance(piece, FoundCall)]
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    contents = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return [thoughts.strip(), *calls, contents]


# Two have an empty thought in the prompt that they drop, and two have no tools.
@pytest.mark.parametrize(
    "name", sorted(RENDERERS.keys() - {"cohere", "gemma4-large", "olmo3-think", "olmo3-32b-think"})
)
def test_calls_are_read_as_they_are_written(name: str) -> None:
    prompt, answer = answer_of(name, CALLS, thinks=False)
    thought, look, rest, content = read(name, prompt, answer, thinks=False)
    assert (look, rest) == (FoundCall("look", {"at": "sun", "long": 2}), FoundCall("rest", {}))
    # The rest are end tokens, which the engine does not show.
    assert not thought
    assert len(content) < 30


# Others omit thoughts when they write a conversation.
@pytest.mark.parametrize(
    "name",
    [
        "cohere",
        "gemma4-large",
        "glimmer",
        "glm-4.7",
        "laguna",
        "nemotron-3-nano",
        "nemotron-3.5-nano",
        "ornith",
        "poolside-v1",
        "qwen3-vl-thinking",
        "qwen3.5",
        "qwen3.8",
    ],
)
def test_thoughts_are_read_as_they_are_written(name: str) -> None:
    prompt, answer = answer_of(name, {**CALLS, "thinking": "Hm. So."}, thinks=True)
    assert read(name, prompt, answer, thinks=True)[:2] == [
        "Hm. So.",
        FoundCall("look", {"at": "sun", "long": 2}),
    ]


@pytest.mark.parametrize("name", RENDERERS)
def test_an_answer_that_has_begun_goes_on(name: str) -> None:
    begun = {"role": "assistant", "content": "It is"}
    assert written(name, [HELLO, begun], enable_thinking=False).endswith("It is")
    thought = {"role": "assistant", "content": "", "thinking": "I wonder"}
    if FORMATS[RENDERERS[name].parser].thinks and name not in ("cogito", "glm-ocr", "lfm2-thinking"):
        assert written(name, [HELLO, thought], enable_thinking=True).endswith("I wonder")


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("name", RENDERERS)
def test_time_grows_with_the_length_only(name: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        written(name, [*[HELLO, {**CALLS, "thinking": "Hm."}, *RESULTS] * times, HELLO])
        return time.process_time() - start

    seconds(1)
    # Sometimes the garbage collector visits everything that other tests left.
    assert min(seconds(96) for _ in range(3)) < 30 * seconds(12) + 0.1


@pytest.mark.parametrize("name", RENDERERS)
def test_every_renderer_is_whole(name: str) -> None:
    assert RENDERERS[name].parser in FORMATS
    assert "tools" in RENDERERS[name].source or RENDERERS[name].parser == "olmo3-think"
    assert written(name, [])
    assert written(name, [HELLO], []) == written(name, [HELLO])


def test_every_file_is_used() -> None:
    folder = Path(renderers.__file__).parent
    used = {part for renderer in RENDERERS.values() for part in renderer.parts}
    assert used | {"_conversation"} == {path.stem for path in folder.glob("*.jinja")}


def test_gemma4_is_one_of_two_by_its_size() -> None:
    assert find_renderer("gemma4", 8_000_000_000) is RENDERERS["gemma4"]
    assert find_renderer("gemma4", 11_900_000_000) is RENDERERS["gemma4-large"]
    assert find_renderer("gemma4-small", 31_000_000_000) is RENDERERS["gemma4-small"]
    assert find_renderer("from-the-future", 1) is None
    assert find_renderer("", 1) is None
