from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest

from chaski.chat.options import AnswerOptions, GenerateOptions, parse_options
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
        ({"stop": 3}, "option stop is 3; it must be a text or a list of texts"),
        ({"stop": ["a", ""]}, "option stop is ('a', ''); it must be a text or a list of texts, none of them"),
        ({"stop": [b"a"]}, "option stop is (b'a',)"),
        ({"top_p": "high"}, "option top_p is 'high'"),
        ({"min_tokens": -1}, "option min_tokens is -1; it must be an integer of at least 0"),
        ({"min_tokens": 5, "num_predict": 4}, "option min_tokens is 5; it must be at most num_predict, 4"),
        ({"ignore_eos": 1}, "option ignore_eos is 1; it must be True or False"),
        ({"include_stop_str_in_output": "y"}, "option include_stop_str_in_output is 'y'"),
        ({"stop_token_ids": ["a"]}, "option stop_token_ids is ('a',); it must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "option stop_token_ids is (-1,)"),
        ({"stop_token_ids": 4}, "option stop_token_ids is 4"),
        ({"bad_words": [""]}, "option bad_words is ('',); it must be a text or a list of texts"),
        ({"bad_words": ["a"] * 2000}, "it must be a list of at most 1024 texts"),
        ({"dry_sequence_breakers": [1]}, "option dry_sequence_breakers is (1,)"),
    ],
)
def test_faults_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ChaskiError, match=re.escape(message)):
        parse_options(options)


def test_typed_options_are_all_options() -> None:
    with pytest.raises(OptionError) as error:
        parse_options({"": 0})
    known = str(error.value).partition("known: ")[2].split(", ")
    assert sorted(get_type_hints(GenerateOptions)) == known
