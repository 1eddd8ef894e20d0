"""Requests and pieces in llama.cpp's format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaski.chat.events import Done, Event, Text
from chaski.chat.layout import Prompt
from chaski.chat.options import parse_options
from chaski.chat.prompts import Prepared
from chaski.errors import OptionError, UnsupportedError
from chaski.runner.channels.llamacpp.completions import AnswerReader, completion
from chaski.runner.channels.llamacpp.lost_ids import LostIds
from chaski.sample import Sampled
from chaski.text.tokenizer.vocabulary import Vocabulary
from tests.tiny_llama import byte_symbols

CONTROLS = {8: "<|tool|>", 9: "<|end|>"}


def wanted(**options: Any) -> Prepared:
    limits, sampling = parse_options(options)
    return Prepared(
        prompt=Prompt([1, 2, 3]),
        dropped=5,
        limit=13,
        context=100,
        num_keep=4 if limits.shift else None,
        limits=limits,
        sampling=sampling,
    )


def vocabulary() -> Vocabulary:
    """Return a token for each byte, a pair that begins a character, and two tokens with one spelling."""
    tokens = [*map(byte_symbol, range(256)), symbols("🙂".encode()[:2]), "same", "same"]
    return Vocabulary(tokens, np.ones(len(tokens), np.int32), None, None, None, frozenset(), False, False)


def byte_symbol(byte: int) -> str:
    return byte_symbols()[byte]


def symbols(data: bytes) -> str:
    return "".join(map(byte_symbol, data))


LOST = LostIds(vocabulary(), "gpt2")


def piece(text: str, *ids: int, count: int, **more: Any) -> dict[str, Any]:
    return {"content": text, "tokens": list(ids), "stop": False, "tokens_predicted": count, **more}


def end(kind: str, count: int, **more: Any) -> dict[str, Any]:
    times = {"cache_n": 2, "prompt_ms": 1500, "predicted_ms": 250}
    return {
        "stop": True,
        "stop_type": kind,
        "stopping_word": "",
        "tokens_predicted": count,
        "tokens_cached": count + 2,
        "truncated": False,
        "timings": times,
        **more,
    }


def read(asked: Prepared, *pieces: dict[str, Any]) -> list[Event]:
    reader = AnswerReader(asked, CONTROLS, LOST, 0.5)
    return [event for each in pieces for event in reader.feed(each)]


def texts(events: list[Event]) -> list[tuple[str, tuple[int, ...]]]:
    return [(event.text, event.token_ids) for event in events if isinstance(event, Text)]


def test_every_option_of_sampling_is_sent() -> None:
    asked = wanted(temperature=0.5, top_k=7, top_p=0.6, min_p=0.1, typical_p=0.7, seed=2**40 + 3, stop="x")
    sent = completion(asked, True, {})
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "stop", "n_predict", "n_keep")
    assert [sent[name] for name in names] == [0.5, 7, 0.6, 0.1, 0.7, ["x"], 10, 4]
    assert 0 <= sent["seed"] < 2**32 - 1
    assert sent["cache_prompt"] is True
    other = wanted(repeat_last_n=None, repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.4)
    sent = completion(other, False, {})
    told = ("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed")
    assert [sent[name] for name in told] == [13, 1.3, 0.2, 0.4, -1]


def test_options_of_its_own_are_sent() -> None:
    sent = completion(wanted(), True, {})
    assert [sent[name] for name in ("top_n_sigma", "xtc_probability", "ignore_eos")] == [-1, 0, False]
    assert "dry_multiplier" not in sent
    assert completion(wanted(dry_multiplier=1), True, {})["dry_penalty_last_n"] == 13
    given: dict[str, Any] = {
        "dry_multiplier": 0.7,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 9,
        "dry_sequence_breakers": ["x"],
        "top_n_sigma": 1.5,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "ignore_eos": True,
    }
    sent = completion(wanted(**given), True, {})
    assert {name: sent[name] for name in given} == given
    sent = completion(wanted(repetition_penalty=1.2), True, {})
    assert (sent["repeat_penalty"], sent["repeat_last_n"]) == (1.2, 13)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_tokens", 2),
        ("stop_token_ids", [3]),
        ("include_stop_str_in_output", True),
        ("bad_words", ["a"]),
        ("repetition_penalty", 1.2),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(name: str, value: Any) -> None:
    other = {"presence_penalty": 0.5} if name == "repetition_penalty" else {}
    with pytest.raises(UnsupportedError, match=f"option {name}"):
        completion(wanted(**{name: value}, **other), True, {})


def test_biases_and_scores_are_sent() -> None:
    sent = completion(wanted(logit_bias={5: -2.0}, logprobs=True), True, {})
    assert sent["logit_bias"] == [[5, -2.0]]
    assert sent["n_probs"] == 1
    assert completion(wanted(logprobs=True, top_logprobs=4), True, {})["n_probs"] == 4
    assert completion(wanted(), True, {})["n_probs"] == 0


LEAD = {"opening": "<think>", "closing": "<|tool|></think>"}


def grammar_of(**options: Any) -> str:
    return str(completion(wanted(**options), True, {"<|tool|>": 8})["grammar"])


def test_constraints() -> None:
    assert "grammar" not in completion(wanted(), True, {})
    sent = grammar_of(format={"type": "integer"})
    assert sent.startswith("%llguidance {}\nstart: answer\nanswer: %json {")
    assert '"type": "integer"' in sent
    assert '"type": "object"' in grammar_of(format="json")
    assert grammar_of(regex="a+").endswith("answer: /a+/\n")
    assert grammar_of(choice=["a", "b"]).endswith('answer: "a" | "b"\n')
    assert grammar_of(grammar='start: "x"') == '%llguidance {}\nstart: "x"'
    led = grammar_of(choice=["a"], format_thought=LEAD)
    assert '"<think>"' in led
    assert '<[8]> "</think>"' in led
    with pytest.raises(OptionError, match="option grammar behind the model's thinking"):
        grammar_of(grammar='start: "x"', format_thought=LEAD)


def test_an_answer_ends_with_its_grammar() -> None:
    with pytest.raises(UnsupportedError, match="option ignore_eos together with a format"):
        completion(wanted(choice=["a"], ignore_eos=True), True, {})


def test_text_and_the_end() -> None:
    events = read(wanted(), piece("a", 5, count=1), piece("b", 6, count=2), end("limit", 2))
    assert texts(events) == [("a", (5,)), ("b", (6,))]
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.prompt_tokens, done.cached_tokens, done.dropped_tokens) == ("length", 3, 2, 5)
    assert (done.load_seconds, done.prefill_seconds, done.decode_seconds) == (0.5, 1.5, 0.25)


def test_the_control_token_that_ends_is_no_text() -> None:
    for special in (False, True):
        asked = wanted(special=special)
        events = read(asked, piece("a", 5, count=1), piece("<|end|>", 9, count=2), end("eos", 2))
        assert texts(events) == [("a", (5,))]
        assert isinstance(events[-1], Done)
        assert events[-1].reason == "stop"


def test_control_tokens_on_the_way_are_text_where_that_is_asked_for() -> None:
    pieces = (piece("<|tool|>", 8, count=1), piece("x", 5, count=2), end("limit", 2))
    assert texts(read(wanted(special=True), *pieces)) == [("<|tool|>", (8,)), ("x", (5,))]
    assert texts(read(wanted(), *pieces)) == [("x", (8, 5))]


def test_ids_that_are_not_told_are_found_again() -> None:
    e, accent = "é".encode()
    events = read(wanted(), piece("é", accent, count=2), end("limit", 2))
    assert texts(events) == [("é", (e, accent))]
    # A text with another spelling is not accepted.
    assert texts(read(wanted(), piece("é", 7, count=2), end("limit", 2))) == [("é", (7,))]


def test_stop_strings() -> None:
    pieces = (piece("a", 5, count=1), piece("", 6, count=2), end("word", 3, stopping_word="bc"))
    events = read(wanted(stop=["bc"]), *pieces)
    assert texts(events) == [("a", (5,))], "tokens of the stop string are not given out"
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.stop_string, done.generated_tokens) == ("stop", "bc", 3)


def test_forgotten_tokens_are_counted() -> None:
    done = read(wanted(), end("limit", 200, truncated=True, tokens_cached=60))[-1]
    assert isinstance(done, Done)
    assert done.shifted_tokens == 3 + 200 - 1 - 60


def test_scores() -> None:
    scores = [{"id": 5, "logprob": -0.1, "top_logprobs": [{"id": 5, "logprob": -0.1}]}]
    asked = wanted(logprobs=True, top_logprobs=1)
    event = read(asked, piece("a", 5, count=1, completion_probabilities=scores))[0]
    assert isinstance(event, Text)
    assert event.logprobs == (Sampled(5, -0.1, ((5, -0.1),)),)


@pytest.mark.parametrize(
    ("text", "last", "count", "found"),
    [
        ("é", 0xA9, 1, (0xC3,)),
        ("漢", 0xA2, 2, (0xE6, 0xBC)),
        ("🙂", 0x82, 3, (0xF0, 0x9F, 0x99)),
        ("🙂", 0x82, 2, (256, 0x99)),  # the pair and one byte, which tokenizing the text may not give
        ("🙂", 0x82, 1, ()),  # no token has three bytes
        ("🙂", 0x99, 3, ()),  # it does not end with this one
        ("ab", ord("b"), 1, ()),  # no text would have been held back
        ("samee", ord("e"), 1, ()),  # either of two tokens gives it
    ],
)
def test_ids_that_are_not_told(text: str, last: int, count: int, found: tuple[int, ...]) -> None:
    assert tuple(LOST.before(text, last, count, is_held=False)) == found


def test_ids_of_text_that_may_have_begun_a_stop_string() -> None:
    assert tuple(LOST.before("ab", ord("b"), 1, is_held=True)) == (ord("a"),)
    assert not LOST.before("samee", ord("e"), 1, is_held=True)
