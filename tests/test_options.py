"""The table of options: every place that takes options accepts exactly those of the table."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.options import AnswerOptions, GenerateOptions, checked_options, parse_options
from chaski.cli.chat_help import PARAMETERS_HELP
from chaski.errors import ChaskiError, ModelfileError
from chaski.options import FIELDS, MESSAGES, MODELFILE, OPTIONS, REQUEST, Kind, Option, names_of
from chaski.sample import SamplingOptions
from chaski.server.dialects import llamacpp
from chaski.server.dialects.anthropic import read_messages
from chaski.server.dialects.openai import read_completion
from chaski.store.modelfile import Modelfile
from chaski.store.parameters import parse_parameter

# A value of each kind in JSON and in a Modelfile.
VALUES: dict[Kind, tuple[Any, str]] = {
    Kind.INTEGER: (1, "1"),
    Kind.NUMBER: (1.0, "1.0"),
    Kind.FLAG: (True, "true"),
    Kind.TEXT: ("a", "a"),
    Kind.TEXTS: (["a"], "a"),
    Kind.TOKENS: ([7], "7"),
}
OTHERS: dict[str, Any] = {
    "logit_bias": {"7": 1.0},
    "adapter": ["a"],
    "early_stopping": True,
    "engine": "native",
    "format": "json",
    "receipt": True,
}


def value_of(name: str, option: Option) -> Any:
    return OTHERS[name] if option.kind is Kind.OTHER else VALUES[option.kind][0]


def test_the_table_has_the_options_of_a_generation_and_of_loading() -> None:
    generation = {name for name, option in OPTIONS.items() if not option.is_loading}
    assert generation == set(AnswerOptions.__struct_fields__) | set(SamplingOptions.__struct_fields__)
    assert generation == GenerateOptions.__annotations__.keys()


@pytest.mark.parametrize("name", [name for name in OPTIONS if not OPTIONS[name].is_loading])
def test_a_value_of_another_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(ChaskiError, match=f"option {name} "):
        parse_options({name: object()})


@pytest.mark.parametrize("name", names_of(MODELFILE))
def test_parameters_of_modelfiles(name: str) -> None:
    option = OPTIONS[name]
    text = "native" if name == "engine" else VALUES[option.kind][1]
    value = value_of(name, option)
    assert parse_parameter(name, text) == (value[0] if isinstance(value, list) else value)


def test_several_parameters_are_a_list() -> None:
    lines = ("FROM guide", *(f"PARAMETER stop_token_ids {token}" for token in (7, 8)), "PARAMETER stop a")
    assert Modelfile.parse("\n".join(lines)).parameters == {"stop_token_ids": [7, 8], "stop": ["a"]}


def test_other_names_are_no_parameters_of_modelfiles() -> None:
    for name in OPTIONS.keys() - names_of(MODELFILE):
        with pytest.raises(ModelfileError, match=f"unknown parameter '{name}'"):
            parse_parameter(name, "1")


@pytest.mark.parametrize("name", OPTIONS)
def test_entries_of_options(name: str) -> None:
    """An entry outside the table's places has no effect; the audit of fields reports it."""
    option = OPTIONS[name]
    if name not in names_of(REQUEST):
        assert checked_options({name: 1}).generate == {}
        return
    searching = {"num_beams": 2} if name in ("length_penalty", "early_stopping") else {}
    found = checked_options({name: value_of(name, option), **searching})
    assert option.is_loading or found.generate[name] is not None


@pytest.mark.parametrize("name", names_of(FIELDS))
def test_fields_of_openais_routes(name: str) -> None:
    value = value_of(name, OPTIONS[name])
    (asked,) = read_completion({"model": "guide", "prompt": "a", name: value}).prompts
    assert asked.options[name] == value


@pytest.mark.parametrize("name", names_of(MESSAGES))
def test_fields_of_anthropics_routes(name: str) -> None:
    message = {"role": "user", "content": "a"}
    asked = read_messages({"model": "guide", "max_tokens": 5, "messages": [message], name: 0.5})
    assert asked.options == {"num_predict": 5, "temperature": 1.0} | {name: 0.5}


def test_defaults_of_openais_routes() -> None:
    (asked,) = read_completion({"model": "guide", "prompt": "a"}).prompts
    assert asked.options == {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.llama_cpp])
def test_fields_of_llama_cpps_routes(name: str) -> None:
    option = OPTIONS[name]
    given = {option.llama_cpp: value_of(name, option)}
    filled = llamacpp.read_infill({"input_prefix": "a", "input_suffix": "b", **given}, "guide")
    continued = llamacpp.read_completion({"prompt": "a", **given}, "guide")
    assert filled.asked.options == continued.asked.options == {name: value_of(name, option)}


def test_an_empty_list_of_stop_texts_leaves_those_of_the_model() -> None:
    (asked,) = read_completion({"model": "guide", "prompt": "a", "stop": []}).prompts
    assert "stop" not in asked.options
    (asked,) = read_completion({"model": "guide", "prompt": "a", "dry_sequence_breakers": []}).prompts
    assert asked.options["dry_sequence_breakers"] == []


def test_the_help_of_the_chat_fits_a_window() -> None:
    assert max(map(len, PARAMETERS_HELP.splitlines())) <= 79
