"""The ways to use a stored model: Python, `chaski run` without a server, and the three APIs."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

from chaski.cli.session import Session
from chaski.runner.llm import LLM
from tests.server.running import Reply, Running
from tests.server.stored_models import Case

__all__ = ["Messages", "Said", "Ways"]

Said: TypeAlias = tuple[str, str, list[tuple[str, Any]]]
"""Text, thinking and calls of an answer."""
Messages: TypeAlias = list[dict[str, Any]]
"""A conversation in the form of Ollama's API, except images, which are paths."""


@dataclass
class Ways:
    """The ways to use one stored model. Each answers a conversation in Ollama's form."""

    case: Case
    server: Running
    model: LLM
    here: LLM

    def python(self, messages: Messages, tools: Any, think: Any) -> Said:
        said = self.model.chat(messages, tools, think=think)
        return said.text, said.thinking, [(call.name, call.arguments) for call in said.tool_calls]

    def run(self, messages: Messages, tools: Any, think: Any) -> Said:
        """Run without a server; split the output at the lines around thoughts."""
        assert not tools, "run offers none"
        *before, last = messages
        is_told = bool(before) and before[0]["role"] == "system"
        session = Session(self.here, {}, before[0]["content"] if is_told else None, name=self.case.name)
        session.history = before[1:] if is_told else before
        if think is not None:
            session.choose_thinking(think)
        paths = "".join(f"'{path}' " for path in last.get("images", ()))
        with redirect_stdout(StringIO()) as output:
            assert session.answer(paths + last["content"])
        shown = output.getvalue()
        head, line, rest = shown.partition("\n...done thinking.\n\n")
        if not line:
            return shown.removesuffix("\n"), "", []
        return rest.removesuffix("\n"), head.removeprefix("Thinking...\n"), []

    def ollama(self, messages: Messages, tools: Any, think: Any) -> Said:
        turns = [_with_images(turn, lambda data: data) for turn in messages]
        more = {} if think is None else {"think": think}
        reply = self._ask("/api/chat", {"messages": turns, "tools": tools or [], "stream": False} | more)
        said = reply.json["message"]
        calls = [each["function"] for each in said.get("tool_calls", ())]
        return (
            said["content"],
            said.get("thinking", ""),
            [(call["name"], call["arguments"]) for call in calls],
        )

    def openai(self, messages: Messages, tools: Any, think: Any) -> Said:
        body = _openai_body(messages, tools, think)
        said = self._ask("/v1/chat/completions", body).json["choices"][0]["message"]
        calls = [each["function"] for each in said.get("tool_calls", ())]
        found = [(call["name"], json.loads(call["arguments"])) for call in calls]
        return said["content"] or "", said.get("reasoning", ""), found

    def rendered(self, messages: Messages, tools: Any, think: Any) -> str:
        """Return the prompt from `/apply-template`, without an answer."""
        reply = self._ask("/apply-template", _openai_body(messages, tools, think))
        return str(reply.json["prompt"])

    def anthropic(self, messages: Messages, tools: Any, think: Any) -> Said:
        body: dict[str, Any] = {"max_tokens": 99}
        if think is False or self.case.thinks:  # by default, it does not think here
            body["thinking"] = {"type": "disabled" if think is False else "enabled"}
        if isinstance(think, str):
            body["output_config"] = {"effort": think}
        if messages[0]["role"] == "system":
            body["system"] = messages[0]["content"]
            messages = messages[1:]
        if tools:
            function = dict(tools[0]["function"])
            body["tools"] = [{"input_schema": function.pop("parameters"), **function}]
        body["messages"] = list(map(_anthropic_turn, messages))
        blocks = self._ask("/v1/messages", body).json["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        return text, thought, [(block["name"], block["input"]) for block in blocks if "input" in block]

    def _ask(self, path: str, body: Mapping[str, Any]) -> Reply:
        reply = self.server.post(path, {"model": self.case.name, **body})
        assert reply.status == 200, (path, reply.body)
        return reply

    def others(self, tools: Any) -> Sequence[Callable[[Messages, Any, Any], Said]]:
        """Return all ways except Python that accept these tools."""
        served = [self.ollama, self.openai, self.anthropic]
        return served if tools else [*served, self.run]


def _with_images(turn: dict[str, Any], shown: Callable[[str], Any]) -> dict[str, Any]:
    """Return the turn with image files in base64, as in an API."""
    files = [b64encode(Path(path).read_bytes()).decode() for path in turn.get("images", ())]
    return {**turn, **({"images": [shown(data) for data in files]} if files else {})}


def _openai_body(messages: Messages, tools: Any, think: Any) -> dict[str, Any]:
    efforts: Any = {None: {}, False: {"reasoning_effort": "none"}, True: {"reasoning": {"enabled": True}}}
    more = efforts.get(think, {"reasoning_effort": think})
    return {"messages": list(map(_openai_turn, messages)), **({"tools": tools} if tools else {}), **more}


def _openai_turn(turn: dict[str, Any]) -> dict[str, Any]:
    turn = _with_images(turn, lambda data: {"image_url": {"url": f"data:image/png;base64,{data}"}})
    found = {"role": turn["role"], "content": turn["content"]}
    if images := turn.get("images"):
        parts = [{"type": "image_url", **image} for image in images]
        found["content"] = [*parts, {"type": "text", "text": turn["content"]}]
    if "thinking" in turn:
        found["reasoning"] = turn["thinking"]
    if "tool_call_id" in turn:
        found["tool_call_id"] = turn["tool_call_id"]
    if calls := turn.get("tool_calls"):
        functions = [
            {**call["function"], "arguments": json.dumps(call["function"]["arguments"])} for call in calls
        ]
        found["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
    return found


def _anthropic_turn(turn: dict[str, Any]) -> dict[str, Any]:
    if turn["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
        return {"role": "user", "content": [block]}
    blocks: list[dict[str, Any]] = []
    if "thinking" in turn:
        blocks.append({"type": "thinking", "thinking": turn["thinking"], "signature": ""})
    source = {"type": "base64", "media_type": "image/png"}
    seen = _with_images(turn, lambda data: {"type": "image", "source": {**source, "data": data}})
    blocks += seen.get("images", ())
    if turn["content"]:
        blocks.append({"type": "text", "text": turn["content"]})
    for call in turn.get("tool_calls", ()):
        function = call["function"]
        used = {"id": call["id"], "name": function["name"], "input": function["arguments"]}
        blocks.append({"type": "tool_use", **used})
    return {"role": turn["role"], "content": blocks}
