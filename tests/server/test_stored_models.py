"""Python, `chaski run` and three APIs give a stored model the same prompt, and parse its answer alike.

The engine is scripted: it records prompts, and writes the answers of the table. Everything else is real: the
store, the server, the service of a model, the command.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import chaski
from chaski.chat.events import Done, Text
from chaski.chat.prompts import Prepared
from chaski.cli.local import load_for_chat
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.sequence_builder import SequenceBuilder
from chaski.runner.llm import LLM
from chaski.server.settings import Settings
from chaski.store.model import find_model
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.server.stored_models import ANSWERS, CASES, FILLED, JINJA, Case
from tests.server.ways import Messages, Ways
from tests.tiny_llama import write_tiny_llama
from tests.tiny_vision import DATA

HELLO: dict[str, Any] = {"role": "user", "content": "hi"}
TALK: Messages = [
    {"role": "system", "content": "be kind"},
    HELLO,
    {"role": "assistant", "content": "hello", "thinking": "a greeting"},
    {"role": "user", "content": "and now?"},
]
CALL = {"id": "call_1", "function": {"name": "clock", "arguments": {"at": 1}}}
CALLED: Messages = [
    HELLO,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "noon", "tool_name": "clock", "tool_call_id": "call_1"},
]
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
FUNCTION = {"name": "clock", "description": "Time.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
BOS = {"gemma3": "<bos>", "mistral3": "<s>", "plain": "<|begin_of_text|>", "jinja": "<|begin_of_text|>"}
OPENINGS = ("<think>", "<|START_THINKING|>", "<|channel>thought")


class Scripted(Sequence):
    """Replaces a sequence of the engine: its answer is ready, in pieces of five characters."""

    def __init__(self, tokens: list[int], text: str) -> None:
        super().__init__(tokens)
        self.is_running = False
        self.events.extend(Text(text[begin : begin + 5], (1,)) for begin in range(0, len(text), 5))
        counts: dict[str, Any] = {"cached_tokens": 0, "generated_tokens": 9, "dropped_tokens": 0}
        times = {"load_seconds": 0.0, "prefill_seconds": 0.1, "decode_seconds": 0.1}
        self.events.append(Done(reason="stop", prompt_tokens=len(tokens), **counts, **times))

    def outputs(self, begin: int, count: int) -> range:
        raise AssertionError("nothing is computed")

    def take(self, rows: object, top_logits: object) -> int:
        raise AssertionError("nothing is computed")

    def write(self) -> None:
        raise AssertionError("nothing is computed")


@dataclass
class Edge:
    """The prompts and answers of the engine. It does not repeat an opening that is in the prompt."""

    answer: str = "Fine."
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    text: str = ""

    def generation(self, builder: SequenceBuilder, prepared: Prepared, *more: Any) -> Sequence:
        tokens = prepared.prompt.tokens
        self.prompts.append(tuple(tokens))
        shown = [token for token in tokens if token >= 0 and token != builder.tokenizer.bos_id]
        self.text = builder.tokenizer.decode(shown, special=True)
        begun = next((each for each in OPENINGS if self.text.rstrip().endswith(each)), "")
        return Scripted(tokens, self.answer.removeprefix(begun))


class InProcess:
    """A worker of the server whose model is in this process."""

    is_running = True
    num_replicas = 1

    def __init__(self, path: Path, **options: Any) -> None:
        self._model = chaski.load(path, **options | {"threads": 1})
        self.asynchronous = self._model.asynchronous
        self.close = self._model.close


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    found = Edge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceBuilder, "generation", lambda *asked: found.generation(*asked))
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "red.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path


@pytest.fixture(scope="module")
def server(edge: Edge, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with all models, in a store that Python reads, too."""
    folder = tmp_path_factory.mktemp("files")
    files = {name: DATA / f"{name}.gguf" for name in ("gemma3", "mistral3")}
    for name, template in (("plain", None), ("jinja", JINJA)):
        files[name] = write_tiny_llama(folder / f"{name}.gguf", template, llama__context_length=4096)
    with running(Settings(address=SOMEWHERE), store, InProcess) as found:
        digests = {}
        for name, path in files.items():
            digests[name] = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
            found.post(f"/api/blobs/{digests[name]}", path.read_bytes())
        for case in CASES:
            body = {"model": case.name, "files": {"a.gguf": digests[case.file]}, "stream": False}
            assert found.post("/api/create", body | dict(case.layers or {})).json == {"status": "success"}
        yield found


@pytest.fixture(scope="module")
def ways(request: pytest.FixtureRequest, server: Running, store: Path) -> Iterator[Ways]:
    case: Case = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(store))
        model = chaski.load(case.name, threads=1)
        found = find_model(case.name)
        here = load_for_chat(found, case.name, threads=1, context=None, backend="cpu", engine=None)
    assert isinstance(here, LLM)
    with model, here:
        yield Ways(case, server, model, here)


def conversations(case: Case, picture: Path) -> Iterator[tuple[Messages, Any, Any]]:
    """Return messages, tools, and the think option."""
    yield [HELLO], None, None
    yield TALK, None, None
    yield TALK, None, False
    if case.thinks:
        yield [HELLO], None, "high"
    if case.tools:
        yield [HELLO], TOOLS, True if case.thinks else None
        yield CALLED, TOOLS, False if case.thinks else None
    if case.has_vision:
        yield [HELLO | {"images": [picture]}], None, None
        yield [*TALK[:-1], HELLO | {"images": [picture, picture]}], None, None


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("ways", CASES, ids=lambda case: case.name, indirect=True)
def test_same_prompts_and_answers(ways: Ways, edge: Edge, picture: Path) -> None:
    case = ways.case
    known = [name in ways.model.capabilities for name in ("tools", "thinking", "insert")]
    assert known == [case.tools, case.thinks, case.inserts]
    for messages, tools, think in conversations(case, picture):
        thinks = case.always_thinks or (case.thinks and think is not False)
        thought, text, call = ANSWERS[case.parser]
        edge.answer = (thought if thinks else "") + text + call
        edge.prompts.clear()
        first = ways.python(messages, tools, think)
        for way in ways.others(tools):
            assert way(messages, tools, think) == first, (way.__name__, messages, think)
            assert edge.prompts[-1] == edge.prompts[0], (way.__name__, messages, think, edge.text)
        assert len(edge.prompts) == (4 if tools else 5)
        assert (min(edge.prompts[0]) < 0) == ("images" in messages[-1])
        text = ways.rendered(messages, tools, think)
        if "images" not in messages[-1]:
            assert text.removeprefix(BOS[case.file]) == edge.text
        said, thinking, calls = first
        assert thinking == ("I wonder" if thinks else "")
        assert calls == ([("clock", {"at": 1})] if tools else [])
        assert said.strip() == "Fine." if tools else "Fine." in said
        if (messages, tools, think) == ([HELLO], None, None) and case.hello is not None:
            assert edge.text == case.hello


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case.inserts], ids=lambda case: case.name)
def test_same_prompts_for_a_suffix(
    server: Running, edge: Edge, store: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": case.name, "prompt": "before", "suffix": "after", "stream": False}
    edge.answer = "Fine."
    assert server.post("/api/generate", asked).json["response"] == "Fine."
    first = edge.prompts[-1]
    assert edge.text == FILLED
    assert server.post("/v1/completions", asked).json["choices"][0]["text"] == "Fine."
    assert edge.prompts[-1] == first
    infill = {"model": case.name, "input_prefix": "before", "input_suffix": "after"}
    assert server.post("/infill", infill).json["content"] == "Fine."
    assert edge.prompts[-1] == first
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    with chaski.load(case.name, threads=1) as model:
        assert model.generate("before", suffix="after").text == "Fine."
        assert edge.prompts[-1] == first
        assert asyncio.run(model.asynchronous().generate("before", suffix="after")).text == "Fine."
        assert edge.prompts[-1] == first
        assert [each.text for each in model.generate_many(["before"], suffix="after")] == ["Fine."]
        assert edge.prompts[-1] == first
