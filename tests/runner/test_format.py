"""Answers that follow a JSON schema, made by a random model that knows nothing of JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError
from tests.tiny_llama import write_tiny_llama

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SEEDED: dict[str, Any] = {"temperature": 1.2, "num_predict": 300}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", llama__context_length=512)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[chaski.LLM]:
    with chaski.load(path, threads=1, parallel=4) as loaded:
        yield loaded


@pytest.mark.parametrize("seed", range(8))
def test_answers_follow_the_schema(model: chaski.LLM, seed: int) -> None:
    answer = model.generate("a person: ", format=PERSON, seed=seed, **SEEDED)
    assert answer.done_reason == "stop"
    person = json.loads(answer.text)
    assert person.keys() == {"name", "age", "tags"}
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 150
    assert set(person["tags"]) <= {"red", "blue"}


def test_a_greedy_answer_follows_it_too(model: chaski.LLM) -> None:
    answer = model.generate("x", format={"enum": ["yes", "no"]}, temperature=0, num_predict=20)
    assert json.loads(answer.text) in {"yes", "no"}


def test_json_is_an_object(model: chaski.LLM) -> None:
    answer = model.generate("x", format="json", seed=1, temperature=2.0, num_predict=60)
    assert answer.text.lstrip().startswith("{")


def test_the_same_answer_together_and_alone(path: Path, model: chaski.LLM) -> None:
    def ask(seed: int) -> str:
        return model.generate("a person: ", format=PERSON if seed % 2 else None, seed=seed, **SEEDED).text

    alone = [ask(seed) for seed in range(6)]
    together = [""] * 6

    def run(seed: int) -> None:
        together[seed] = ask(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert together == alone


def test_log_probabilities_are_those_of_the_model(model: chaski.LLM) -> None:
    """A token that the schema forces is not certain for the model."""
    answer = model.generate("x", format={"const": "abc"}, temperature=0, logprobs=True)
    assert answer.text == '"abc"'
    assert all(entry.logprob is not None and entry.logprob < -0.01 for entry in answer.logprobs)


def test_it_begins_behind_a_text(path: Path) -> None:
    with chaski.load(path, threads=1) as model:
        free = model.generate("thinking ", seed=3, temperature=1.0, num_predict=40)
        before = model.detokenize(free.token_ids[:9])
        marker = before[-2:]
        assert before.count(marker) == 1
        assert "\ufffd" not in marker
        answer = model.generate(
            "thinking ",
            format={"enum": ["yes", "no"]},
            format_after=marker,
            seed=3,
            temperature=1.0,
            num_predict=60,
        )
        assert answer.text in {before + '"yes"', before + '"no"'}


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ({"type": "nonsense"}, "option format holds a schema that cannot be used: .*nonsense"),
        ({"properties": {"a": {"$ref": "#/missing"}}}, "missing"),
        ({"type": "string", "pattern": "("}, "option format"),
        (7, 'option format is 7; it must be "json" or a JSON schema'),
        ("xml", "option format is 'xml'"),
    ],
)
def test_what_cannot_be_compiled(model: chaski.LLM, format: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.generate("x", format=format)


def test_grammars_are_compiled_once(model: chaski.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"enum": ["once"]}
    model.generate("x", format=schema, num_predict=20)
    monkeypatch.setattr(type(model.prompts._grammars), "_compiled", None)
    assert model.generate("y", format=schema, num_predict=20).text == '"once"'
