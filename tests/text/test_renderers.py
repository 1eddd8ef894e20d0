"""Templates that stand for renderers: each gives what its model was trained on."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.text.template import ChatTemplate
from chaski.text.template.renderers import RENDERERS

HELLO = {"role": "user", "content": "Hi"}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "b"}},
]
CALL = {"role": "assistant", "content": "", "tool_calls": []}
CALL["tool_calls"] = [{"function": {"name": "w", "arguments": {"place": "Paris", "n": 2}}}]
BEGIN, ANSWER = "<|startoftext|>", "<|im_start|>assistant\n"


def written(name: str, messages: list[Any], **options: Any) -> str:
    return ChatTemplate(RENDERERS[name], BEGIN, "").render(messages, **options)


@pytest.mark.parametrize("name", ["lfm2", "lfm2-thinking"])
def test_lfm2(name: str) -> None:
    user = "<|im_start|>user\nHi<|im_end|>\n"
    assert written(name, []) == BEGIN + ANSWER
    assert written(name, [HELLO]) == BEGIN + user + ANSWER
    system = {"role": "system", "content": "Be kind."}
    listed = (
        'List of tools: <|tool_list_start|>[{"name": "a", "parameters": {"type": "object"}}, {"name": "b"}]'
    )
    listed += "<|tool_list_end|><|im_end|>\n"
    assert written(name, [HELLO], tools=TOOLS) == f"{BEGIN}<|im_start|>system\n{listed}{user}{ANSWER}"
    told = f"{BEGIN}<|im_start|>system\nBe kind.\n{listed}{user}{ANSWER}"
    assert written(name, [system, HELLO], tools=TOOLS) == told
    called = f'{ANSWER}<|tool_call_start|>[w(place="Paris", n=2)]<|tool_call_end|><|im_end|>\n'
    result = "<|im_start|>tool\n<|tool_response_start|>22C<|tool_response_end|><|im_end|>\n"
    turns = [HELLO, CALL, {"role": "tool", "content": "22C"}]
    assert written(name, turns) == BEGIN + user + called + result + ANSWER


def test_what_lfm2_thought_before_is_left_out() -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>A"}
    turns = [HELLO, thought, HELLO, thought]
    forgotten = written("lfm2-thinking", turns, enable_thinking=False)
    assert forgotten.count("<think>hm</think>") == 1
    assert forgotten.endswith(f"{ANSWER}<think>hm</think>A")  # which goes on
    assert written("lfm2-thinking", turns, enable_thinking=True).count("<think>hm</think>") == 2
    assert written("lfm2", turns).count("<think>hm</think>") == 2
