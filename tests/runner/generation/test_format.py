"""Answers that follow a JSON schema, made by a random model that knows nothing of JSON."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.options import AnswerOptions
from chaski.errors import OptionError
from chaski.runner.generation.token_rules import token_rules
from chaski.sample.grammar import GrammarCompiler
from tests.text.token_fixtures import sentencepiece_metadata, unigram_metadata
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


LEAD = {"opening": "<t>", "closing": "</t>"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_open", [False, True])
def test_a_thought_may_go_before_and_must_end_where_it_has_begun(
    model: chaski.LLM, seed: int, is_open: bool
) -> None:
    answer = model.generate(
        "x",
        format={"enum": ["yes", "no"]},
        format_thought={**LEAD, "is_open": is_open},
        # A random model would not close a tag by chance.
        logit_bias={model.tokenize(letter)[-1]: 9 for letter in "</t>"},
        seed=seed,
        temperature=1.0,
        num_predict=400,
    )
    before, tag, said = answer.text.rpartition("</t>")
    assert (said.strip() in {'"yes"', '"no"'}) == (answer.done_reason == "stop")
    assert before.startswith("<t>") or is_open or not tag
    assert "</t>" not in before


def test_an_answer_may_come_at_once(model: chaski.LLM) -> None:
    biased = {"logit_bias": {model.tokenize('"')[-1]: 100}, "temperature": 0}
    answer = model.generate("x", format={"const": "a"}, format_thought=LEAD, num_predict=9, **biased)
    assert (answer.text, answer.done_reason) == ('"a"', "stop")


def test_a_budget_that_ends_inside_of_a_thought(model: chaski.LLM) -> None:
    begun = {**LEAD, "is_open": True}
    ends = dict.fromkeys(model.tokenizer.eos_ids, 50)
    answer = model.generate("x", format="json", format_thought=begun, num_predict=12, logit_bias=ends, seed=1)
    assert (answer.done_reason, answer.done.generated_tokens) == ("length", 12)


@pytest.mark.parametrize(
    ("lead", "message"),
    [
        ("</think>", "option format_thought is '</think>'; it must have the texts opening and closing"),
        ({"closing": "x"}, "must have the texts opening and closing"),
        ({**LEAD, "other": 1}, "must have the texts"),
        ({**LEAD, "is_open": "yes"}, "must have the texts"),
        ({"opening": "", "closing": "x"}, "texts that are not empty"),
        ({"opening": "x", "closing": ""}, "texts that are not empty"),
    ],
)
def test_leads_that_are_none(model: chaski.LLM, lead: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.generate("x", format="json", format_thought=lead)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ({"regex": "[a-c]{3,5}-(x|y)"}, "[a-c]{3,5}-(x|y)"),
        ({"regex": r"^\d\\$"}, r"[0-9]\\"),
        ({"regex": "^[ab]/c$"}, "[ab]/c"),
        ({"choice": ["a", "ab", 'q"\\\n', "é"]}, 'a|ab|q"\\\\\n|é'),
        ({"grammar": 'start: "a" word\nword: /[x-z]/{2}'}, "a[x-z]{2}"),
    ],
)
@pytest.mark.parametrize("lead", [None, LEAD])
def test_other_constraints(model: chaski.LLM, seed: int, option: Any, pattern: str, lead: Any) -> None:
    closing = {model.tokenize(letter)[-1]: 6 for letter in "</t>"} if lead else {}
    options = {**SEEDED, "seed": seed, "logit_bias": closing}
    answer = model.generate("x", format_thought=lead, **option, **options)
    if answer.done_reason == "stop":
        assert re.fullmatch(rf"(<t>(?s:.*?)</t>\s*)?({pattern})", answer.text)
    else:
        assert lead is not None
        assert "</t>" not in answer.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "option regex is one that cannot be used"),
        ({"regex": "^$"}, "it is empty"),
        ({"regex": "a" * 20_000}, "has 20000 characters"),
        ({"regex": 3}, "option regex is 3; it must be a text"),
        ({"choice": []}, "option choice"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": ["a", 3]}, "option choice"),
        ({"grammar": "start: a"}, "option grammar holds one that cannot be used"),
        ({"grammar": "a" * 70_000}, "has 70000 characters"),
        ({"grammar": "", "format": "json"}, "option grammar is ''"),
        ({"regex": "a", "format": "json"}, "options format and regex exclude each other"),
        ({"choice": ["a"], "grammar": "x"}, "options choice and grammar exclude each other"),
    ],
)
def test_constraints_that_cannot_be(model: chaski.LLM, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.generate("x", **options)


def test_a_grammar_that_becomes_too_much_ends_one_request(model: chaski.LLM) -> None:
    hard = 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"'
    with pytest.raises(OptionError, match="option grammar cannot be followed any further"):
        model.generate("x", grammar=hard, num_predict=400, seed=1)
    assert model.generate("x", choice=["a"]).text == "a"


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
    monkeypatch.setattr(GrammarCompiler, "_compiled", None)
    assert model.generate("y", format=schema, num_predict=20).text == '"once"'


@pytest.fixture(scope="module", params=["sentencepiece", "unigram that changes texts"])
def spaced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chaski.LLM]:
    """Write a model whose tokenizer puts a space before every text."""
    tokenizer = sentencepiece_metadata() if request.param == "sentencepiece" else unigram_metadata()
    path = tmp_path_factory.mktemp("spaced") / "spaced.gguf"
    with chaski.load(write_tiny_llama(path, tokenizer=tokenizer), threads=1) as loaded:
        yield loaded


FORCED: list[tuple[dict[str, Any], str]] = [
    ({"choice": ["a load of wool", "two loads of wool"]}, r"(a load|two loads) of wool"),
    ({"regex": r"[ab]  and no  more\."}, r"[ab]  and no  more\."),
    ({"grammar": 'root ::= ("yes" | "no") ", that is  so"'}, "(yes|no), that is  so"),
    ({"format": {"type": "array", "items": {"const": "x  y"}, "minItems": 1}}, r'\[\s*"x  y"[^z]*\]'),
]


@pytest.mark.parametrize(("options", "expected"), FORCED)
@pytest.mark.parametrize("seed", range(4))
def test_forced_texts_where_the_tokenizer_adds_a_space(
    spaced: chaski.LLM, options: dict[str, Any], expected: str, seed: int
) -> None:
    answer = spaced.generate("who ", seed=seed, temperature=1.5, num_predict=120, **options)
    assert re.fullmatch(expected, answer.text), answer.text


def test_a_text_that_the_vocabulary_cannot_spell(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "unigram.gguf", tokenizer=unigram_metadata())
    with (
        chaski.load(path, threads=1) as loaded,
        pytest.raises(OptionError, match=r"option choice .* no token of the model continues it"),
    ):
        loaded.generate("x", choice=["\u2603"])


def test_bad_words_in_the_middle_of_a_text(spaced: chaski.LLM) -> None:
    """A word is also ruled out without a space before it."""
    rules = token_rules(AnswerOptions(bad_words=("load",)), spaced.tokenizer, spaced.tokenizer.eos_ids)
    spelled = {b"".join(map(spaced.tokenizer.token_bytes, word)) for word in rules.bad_words}
    assert spelled >= {b"load"}
