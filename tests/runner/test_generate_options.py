from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest

from chaski.errors import ChaskiError, OptionError
from chaski.runner.options import GenerateOptions, Limits, parse_options
from chaski.sample import SamplingOptions


def test_defaults() -> None:
    assert parse_options({}) == (Limits(), SamplingOptions())


def test_options_go_where_they_belong() -> None:
    limits, sampling = parse_options({"num_predict": 5, "stop": ["a", "b"], "top_k": 3, "seed": 7})
    assert limits == Limits(num_predict=5, stop=("a", "b"))
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
