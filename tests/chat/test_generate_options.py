from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest

from chaski.chat.options import AnswerOptions, GenerateOptions, merged_options, parse_options
from chaski.errors import ChaskiError, OptionError
from chaski.sample import SamplingOptions


def test_defaults() -> None:
    assert parse_options({}) == (AnswerOptions(), SamplingOptions())


def test_options_go_where_they_belong() -> None:
    limits, sampling = parse_options({"num_predict": 5, "stop": ["a", "b"], "top_k": 3, "seed": 7})
    assert limits == AnswerOptions(num_predict=5, stop=("a", "b"))
    assert sampling == SamplingOptions(top_k=3, seed=7)


def test_one_stop_text_may_stand_alone() -> None:
    assert parse_options({"stop": "end"})[0].stop == ("end",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "option 'temprature' is unknown; known: "),
        ({"num_predict": 1.5}, "option num_predict is 1.5; it must be an integer"),
        ({"num_predict": True}, "option num_predict is True"),
        ({"num_keep": -1}, "option num_keep is -1; it must be an integer of at least 0"),
        ({"truncate": 1}, "option truncate is 1; it must be True or False"),
        ({"stop": 3}, "option stop is 3; it must be a text, or a list of at most 1024 texts"),
        ({"stop": ["a", ""]}, "option stop is ('a', ''); it must be a text, or a list"),
        ({"stop": [b"a"]}, "option stop is (b'a',)"),
        ({"stop": ["x" * 70_000]}, "or a list of at most 1024 texts with 65536 characters together"),
        ({"bad_words": ["x" * 40_000] * 2}, "65536 characters together"),
        ({"num_beams": 1_000_000}, "option num_beams is 1000000; it must be an integer from 1 to 1024"),
        ({"top_p": "high"}, "option top_p is 'high'"),
        ({"min_tokens": -1}, "option min_tokens is -1; it must be an integer of at least 0"),
        ({"min_tokens": 5, "num_predict": 4}, "option min_tokens is 5; it must be at most num_predict, 4"),
        ({"ignore_eos": 1}, "option ignore_eos is 1; it must be True or False"),
        ({"include_stop_str_in_output": "y"}, "option include_stop_str_in_output is 'y'"),
        ({"stop_token_ids": ["a"]}, "option stop_token_ids is ('a',); it must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "option stop_token_ids is (-1,)"),
        ({"stop_token_ids": 4}, "option stop_token_ids is 4"),
        ({"bad_words": [""]}, "option bad_words is ('',); it must be a text, or a list"),
        ({"bad_words": ["a"] * 2000}, "it must be a text, or a list of at most 1024 texts"),
        ({"num_beams": 0}, "option num_beams is 0; it must be an integer from 1 to 1024"),
        ({"num_beams": 2.0}, "option num_beams is 2.0"),
        ({"num_beams": 2, "length_penalty": "x"}, "option length_penalty is 'x'; it must be a number"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "option length_penalty is nan"),
        ({"num_beams": 2, "early_stopping": "soon"}, "option early_stopping is 'soon'; it must be True"),
        ({"early_stopping": "never"}, "option early_stopping is for a beam search; give num_beams above 1"),
        ({"length_penalty": 2.0}, "option length_penalty is for a beam search"),
        ({"num_beams": 2, "num_predict": 0}, "option num_predict is 0; a beam search (num_beams) needs"),
        ({"num_beams": 2, "temperature": 0.8}, "option temperature is 0.8; a beam search (num_beams) has no"),
        (
            {"num_beams": 2, "shift": True},
            "option shift is True; a beam search (num_beams) has no such thing",
        ),
        ({"num_beams": 2, "format": "json"}, "option format is 'json'; a beam search (num_beams) has no"),
        ({"dry_sequence_breakers": [1]}, "option dry_sequence_breakers is (1,)"),
    ],
)
def test_faults_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ChaskiError, match=re.escape(message)):
        parse_options(options)


def test_a_search_takes_no_default_that_it_cannot_have() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "stop": ["end"], "min_tokens": 3, "num_ctx": 5}
    kept = {"stop": ["end"], "num_ctx": 5, "num_beams": 4}
    assert merged_options(defaults, {"num_beams": 4}) == kept
    assert merged_options(defaults, {"num_beams": 4, "seed": 1}) == kept | {"seed": 1}, "to be refused"
    assert merged_options(defaults | {"num_beams": 4}, {}) == kept
    assert merged_options(defaults, {"num_beams": 1, "top_k": 3}) == defaults | {"num_beams": 1, "top_k": 3}


def test_what_asks_for_nothing_is_no_fault_of_a_search() -> None:
    neutral = {"temperature": 0, "top_p": 1.0, "seed": None, "shift": False, "format": None, "top_k": 0}
    limits, _ = parse_options({"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never", **neutral})
    assert (limits.num_beams, limits.length_penalty, limits.early_stopping) == (4, 0.5, "never")


def test_typed_options_are_all_options() -> None:
    with pytest.raises(OptionError) as error:
        parse_options({"": 0})
    known = str(error.value).partition("known: ")[2].split(", ")
    assert sorted(get_type_hints(GenerateOptions)) == known


def test_errors_quote_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(OptionError) as found:
        parse_options({"stop": ["x" * 1_000_000]})
    assert len(str(found.value)) < 500
