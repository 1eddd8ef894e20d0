"""A stored model gets the same prompt from the server, from Python and from `chaski run` without a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.requests import Generate
from chaski.cli.local import open_model
from chaski.runner.generation.sequence_builder import SequenceBuilder
from chaski.server.settings import Settings
from chaski.store.model import find_model
from chaski.text.parsers.formats import FORMATS
from chaski.text.template.renderers import RENDERERS
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

BOS = "<|begin_of_text|>"
GO = "{{ range .Messages }}[{{ .Role }}] {{ .Content }}\n{{ end }}[assistant] "
GO_OF_ONE_TURN = "{{ .System }}|{{ .Prompt }}|{{ .Response }}"
GO_WITH_TOOLS = (
    "{{ range .Tools }}{{ .Function.Name }};{{ end }}{{ range .Messages }}[{{ .Role }}] "
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}"
    "{{ range .ToolCalls }}<call>{{ .Function.Name }} {{ .Function.Arguments }}{{ end }}\n{{ end }}"
    "[assistant] {{ if and .IsThinkSet (not .Think) }}<think></think>{{ end }}"
)
GO_INSERT = "{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ else }}" + GO + "{{ end }}"
JINJA = (
    "{{ bos_token }}{% if tools %}<|tools|>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}<call>{{ call.function | tojson }}{{ call.type }}{% endfor %}"
    "{{ m.name }}\n{% endfor %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)

HELLO = {"role": "user", "content": "hi"}
TALK = [
    {"role": "system", "content": "be kind"},
    HELLO,
    {"role": "assistant", "content": "hello", "thinking": "a greeting"},
    {"role": "user", "content": "and now?"},
]
CALLED = [
    HELLO,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "clock", "arguments": {"at": 1}}}],
    },
    {"role": "tool", "content": "noon", "tool_name": "clock"},
]
TOOLS = [{"type": "function", "function": {"name": "clock", "description": "Time.", "parameters": {}}}]


@dataclass(frozen=True)
class Case:
    """A stored model. jinja: whether its file has that template. hello: what "hi" becomes."""

    name: str
    jinja: bool = False
    hello: str | None = None
    tools: bool = False
    thinks: bool = False
    layers: Mapping[str, Any] | None = None


OPENING = {
    "system": "be brief",
    "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}],
}
CASES = [
    Case("nothing", hello="hi"),
    Case("go", hello="[user] hi\n[assistant] ", layers={"template": GO}),
    Case("go-of-one-turn", hello="|hi|", layers={"template": GO_OF_ONE_TURN}),
    Case("go-tools", tools=True, thinks=True, layers={"template": GO_WITH_TOOLS}),
    Case("jinja", True, "<|user|>hi\n<|assistant|>", True, True),
    Case("go-beside-jinja", True, "<|user|>hi\n<|assistant|>", True, True, {"template": GO}),
    Case("go-tools-beside-jinja", True, "[user] hi\n[assistant] ", True, True, {"template": GO_WITH_TOOLS}),
    Case("go-insert-beside-jinja", True, "<|user|>hi\n<|assistant|>", True, True, {"template": GO_INSERT}),
    Case("renderer", True, None, True, True, {"renderer": "qwen3.5", "parser": "qwen3.5", "template": GO}),
    Case("renderer-alone", False, None, True, False, {"renderer": "qwen3-vl-instruct"}),
    Case(
        "unknown-renderer",
        True,
        "<|user|>hi\n<|assistant|>",
        True,
        True,
        {"renderer": "later", "template": GO},
    ),
    Case(
        "opening-go",
        hello="[system] be brief\n[user] 1\n[assistant] 2\n[user] hi\n[assistant] ",
        layers={"template": GO} | OPENING,
    ),
    Case(
        "opening-jinja",
        True,
        "<|system|>be brief\n<|user|>1\n<|assistant|>2\n<|user|>hi\n<|assistant|>",
        True,
        True,
        OPENING,
    ),
    Case("opening-both", True, None, True, True, {"template": GO} | OPENING),
]
# Each renderer as a stored model names it, with the parser that belongs to it.
CASES += [
    Case(
        f"named-{name}",
        tools="tools" in renderer.source,
        thinks=FORMATS[renderer.parser].thinks,
        layers={"renderer": name, "parser": renderer.parser},
    )
    for name, renderer in RENDERERS.items()
]
script = Script(context=8000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """All models, in a store that Python reads too."""
    folder = tmp_path_factory.mktemp("files")
    digests: dict[bool, str] = {}
    with running(Settings(address=SOMEWHERE), store, script.open) as found:
        for has_template in (False, True):
            path = folder / f"{has_template}.gguf"
            template = JINJA if has_template else None
            data = write_tiny_llama(path, template, llama__context_length=4096).read_bytes()
            digests[has_template] = f"sha256:{hashlib.sha256(data).hexdigest()}"
            found.post(f"/api/blobs/{digests[has_template]}", data)
        for case in CASES:
            body = {"model": case.name, "files": {"a.gguf": digests[case.jinja]}, "stream": False}
            assert found.post("/api/create", body | dict(case.layers or {})).json == {"status": "success"}
        yield found


@pytest.fixture
def here(server: Running, store: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts of this process, as they come to the engine."""
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    monkeypatch.setenv("CHASKI_THREADS", "1")
    prompts: list[str] = []
    original = SequenceBuilder.generation

    def noted(self: SequenceBuilder, wanted: Any) -> Any:
        prompts.append(self.tokenizer.decode(wanted.prompt.tokens, special=True))
        return original(self, wanted)

    monkeypatch.setattr(SequenceBuilder, "generation", noted)
    return prompts


def conversations(case: Case) -> Iterator[tuple[list[Any], list[Any] | None]]:
    yield [HELLO], None
    yield TALK, None
    if case.tools:
        yield [HELLO], TOOLS
        yield CALLED, TOOLS


def from_server(
    server: Running, case: Case, messages: list[Any], tools: list[Any] | None, **wishes: Any
) -> str:
    asked = {"model": case.name, "messages": messages, "tools": tools or [], "stream": False, **wishes}
    reply = server.post("/api/chat", asked)
    assert reply.status == 200, reply.body
    last = [call for call in script.asked if isinstance(call, Generate)][-1]
    return bytes(last.prompt).decode().removeprefix(BOS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_prompts(server: Running, here: list[str], case: Case) -> None:
    with chaski.load(case.name, context=4096) as model:
        for messages, tools in conversations(case):
            expected = from_server(server, case, messages, tools)
            model.chat(messages, tools, num_predict=1)
            assert here.pop().removeprefix(BOS) == expected
            if messages == [HELLO] and not tools and case.hello is not None:
                assert expected == case.hello


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_prompts_without_a_server(server: Running, here: list[str], case: Case) -> None:
    """Here thinking can be switched off, where a model thinks; tools are not given."""
    found = find_model(case.name)
    model = open_model(found, case.name, threads=1, context=4096, backend="cpu", engine=None)
    assert ("thinking" in model.capabilities) == case.thinks
    try:
        for messages in ([HELLO], TALK):
            for wishes in ({}, {"think": False}, {"think": True}) if case.thinks else ({},):
                expected = from_server(server, case, messages, None, **wishes)
                list(model.stream_chat(messages, num_predict=1, **wishes))
                assert here.pop().removeprefix(BOS) == expected
                if not case.name.startswith("named-"):  # renderers write earlier turns with empty thoughts
                    assert ("<think></think>" in expected) <= (wishes == {"think": False})
    finally:
        model.close()
