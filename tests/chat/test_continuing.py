"""The last message of the assistant is continued: no template closes it."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.choice import choose_chat_format, go_format, plain_format
from chaski.chat.sources import TemplateSources

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Thoughts come before the answer, and a new answer begins with a thought.
THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# This template omits thoughts.
FORGETS = THINKS.replace("{{ m.reasoning_content }}", "")
# This template leaves the last turn open.
OPEN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if not (loop.last and m.role == 'assistant') %}<|end|>{% endif %}{% endfor %}"
    "{% if messages[-1].role != 'assistant' %}<|assistant|>{% endif %}"
)
# This template refuses conversations that end with the assistant.
REFUSES = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('not the last') }}{% endif %}" + CHATML

ASK: dict[str, Any] = {"role": "user", "content": "Hi"}


def written(source: str, *messages: dict[str, Any], think: bool | None = None) -> str:
    return choose_chat_format(TemplateSources("m", "llama", source)).render([ASK, *messages], think=think)


def answer(content: str, thinking: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"thinking": thinking} if thinking else {})


@pytest.mark.parametrize("source", [CHATML, OPEN, REFUSES])
@pytest.mark.parametrize("said", ["It is", "It is ", "It is\n\n", "{", "Hi"])
def test_an_answer_goes_on(source: str, said: str) -> None:
    assert written(source, answer(said)) == f"<|user|>Hi<|end|><|assistant|>{said}"


def test_an_answer_goes_on_behind_its_thought() -> None:
    assert written(THINKS, answer("It is", "Hm.")).endswith("<|assistant|><think>Hm.</think>It is")
    assert written(THINKS, answer("It is")).endswith("<|assistant|>It is")


def test_a_thought_goes_on() -> None:
    assert written(THINKS, answer("", "Hm.")).endswith("<|assistant|><think>Hm.")
    assert written(FORGETS, answer("", "Hm.")).endswith("<|assistant|><think>\nHm.")
    assert written(CHATML + "{# </think> #}", answer("", "Hm.")).endswith("<|assistant|><think>\nHm.")


def test_an_answer_that_a_template_does_not_take_follows_an_empty_thought() -> None:
    refuses = (
        "{% if messages[-1].role == 'assistant' %}{{ raise_exception('not the last') }}{% endif %}" + THINKS
    )
    assert written(refuses, answer("It is")).endswith("<|assistant|><think>\n\n</think>\n\nIt is")


def test_an_empty_answer_is_a_new_one() -> None:
    assert written(THINKS, answer("")).endswith("<|user|>Hi<|end|><|assistant|><think>\n")


def test_a_call_is_complete() -> None:
    call = {
        "role": "assistant",
        "content": "so",
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    }
    assert written(CHATML, call).endswith("<|end|><|assistant|>")


def test_earlier_turns_are_closed() -> None:
    text = written(CHATML, answer("one"), ASK, answer("two"))
    assert text == "<|user|>Hi<|end|><|assistant|>one<|end|><|user|>Hi<|end|><|assistant|>two"


def test_without_a_template_and_with_one_of_ollama() -> None:
    assert plain_format().render([ASK, answer("It is ")]) == "Hi\n\nIt is "
    go = "{{ range $i, $m := .Messages }}<{{ .Role }}>{{ .Content }}{{ if lt $i 1 }}<end>{{ end }}{{ end }}"
    assert go_format(go, TemplateSources("m", "llama")).render([ASK, answer("It is ")]) == (
        "<user>Hi<end><assistant>It is "
    )


@pytest.mark.parametrize("arguments", ['{"x": ', "[1, 2]", '"text"', "5"])
def test_broken_arguments_are_text_with_every_template(arguments: str) -> None:
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    result = {"role": "tool", "content": "r"}
    jinja = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    jinja += "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    assert arguments in written(jinja + "{% endfor %}", call, result)
    go = "{{ range .Messages }}{{ .Content }}{{ range .ToolCalls }}{{ .Function.Arguments.arguments }}"
    go += "{{ end }}{{ end }}"
    assert arguments in go_format(go, TemplateSources("m", "llama")).render([ASK, call, result])


def test_calls_keep_their_numbers_in_templates_of_ollama() -> None:
    calls = [{"function": {"index": index, "name": "f", "arguments": {"x": 1}}} for index in (0, 1)]
    go = "{{ range .Messages }}{{ .Content }}{{ range .ToolCalls }}"
    go += "{{ .Function.Index }}{{ .Function.Arguments }}"
    found = go_format(go + "{{ end }}{{ end }}", TemplateSources("m", "llama"))
    text = found.render([ASK, {"role": "assistant", "content": "", "tool_calls": calls}])
    assert text == 'Hi0{"x":1}1{"x":1}'


def test_arguments_in_json_are_read() -> None:
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
    }
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for key, value in c.function.arguments.items() %}{{ value }}{% endfor %}"
    )
    assert written(source + "{% endfor %}{% endfor %}", call) == "Hif1"
