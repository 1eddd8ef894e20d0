from __future__ import annotations

import math
from typing import Any

import pytest

from chaski.errors import SamplingError
from chaski.options import nearest
from chaski.sample import SamplingOptions


def test_defaults_are_those_of_the_reference() -> None:
    options = SamplingOptions()
    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.8, 40, 0.9, 0.0)
    assert (options.typical_p, options.repeat_last_n, options.repeat_penalty) == (1.0, 64, 1.0)
    assert not options.has_penalties


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("temperature", math.nan, "a finite number"),
        ("temperature", "0.8", "a finite number"),
        ("top_p", math.inf, "a number from 0 to 1"),
        ("min_p", None, "a number from 0 to 1"),
        ("typical_p", True, "a number from 0 to 1"),
        ("presence_penalty", -math.inf, "a finite number"),
        ("frequency_penalty", 10**400, "a finite number"),
        ("repeat_penalty", 0.0, "a finite number above 0"),
        ("repeat_penalty", -1.1, "a finite number above 0"),
        ("top_k", 40.0, "an integer"),
        ("top_k", True, "an integer"),
        ("repeat_last_n", -1, "an integer of at least 0, or None"),
        ("seed", -1, "an integer from 0 to 2**64 - 1, or None"),
        ("seed", 2**64, "an integer from 0 to 2**64 - 1, or None"),
        ("logprobs", 1, "True or False"),
        ("logit_bias", {1: 100.5}, "an object of numbers from -100 to 100"),
        ("logit_bias", {-1: 1.0}, "an object of numbers from -100 to 100"),
        ("logit_bias", {"1": 1.0}, "an object of numbers from -100 to 100"),
        ("logit_bias", {1: True}, "an object of numbers from -100 to 100"),
        ("logit_bias", [1], "an object of numbers from -100 to 100"),
        ("temperature", -1.0, "a finite number of at least 0"),
        ("top_p", 3, "a number from 0 to 1"),
        ("min_p", -0.5, "a number from 0 to 1"),
        ("typical_p", 1.01, "a number from 0 to 1"),
        ("top_logprobs", 21, "an integer from 0 to 20"),
        ("top_logprobs", -1, "an integer from 0 to 20"),
        ("top_logprobs", 5, "0 unless logprobs is True"),
    ],
)
def test_a_bad_value_is_named_with_its_range(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingOptions(**{name: value})
    assert str(caught.value).startswith(f"option {name} is {value!r}; it must be {wanted}")


def test_ollama_takes_numbers_beyond_their_range_as_far_as_they_go() -> None:
    beyond = {"temperature": -1.0, "top_p": 9, "min_p": -2.0, "typical_p": 1.5, "top_k": -3, "seed": None}
    found = {name: nearest(name, value) for name, value in beyond.items()}
    assert found == {"temperature": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "top_k": -3, "seed": None}
    SamplingOptions(**found)
    assert math.isnan(nearest("top_p", math.nan))  # left for the range to refuse


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1},
        {"top_k": -1},
        {"top_k": 10**9},
        {"top_p": 1.0, "min_p": 0.0, "typical_p": 1},
        {"repeat_last_n": None},
        {"seed": 2**64 - 1},
        {"logprobs": True, "top_logprobs": 20},
    ],
)
def test_values_beyond_a_natural_limit_are_taken(values: dict[str, Any]) -> None:
    options = SamplingOptions(**values)
    assert {name: getattr(options, name) for name in values} == values


@pytest.mark.parametrize(
    ("values", "has_penalties"),
    [
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"frequency_penalty": 0.5, "repeat_last_n": None}, True),
        ({"frequency_penalty": 0.5, "repeat_last_n": 0}, False),
    ],
)
def test_has_penalties(values: dict[str, Any], has_penalties: bool) -> None:
    assert SamplingOptions(**values).has_penalties is has_penalties
