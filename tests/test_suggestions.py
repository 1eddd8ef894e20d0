from __future__ import annotations

import time

import pytest

from chaski.cli.main import chaski_command
from chaski.env import variables
from chaski.options import OPTIONS
from chaski.runner.channels.worker.client import LoadOptions
from chaski.suggestions import FOREIGN, VERBS, equivalent, near_names, normalized, suggestion


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("max_tokens", "num_predict"),
        ("maxTokens", "num_predict"),
        ("--max-new-tokens", "num_predict"),
        ("-n", "num_predict"),
        ("-c", "num_ctx"),
        ("context", "num_ctx"),
        ("temp", "temperature"),
        ("stop_sequences", "stop"),
        ("-ngl", "num_gpu"),
    ],
)
def test_names_of_other_programs_have_an_equivalent(name: str, ours: str) -> None:
    found = equivalent(name, OPTIONS)
    assert found is not None
    assert found[0] == ours


def test_an_abbreviation_is_one_only_with_its_hyphen() -> None:
    assert equivalent("n", OPTIONS) is None
    assert equivalent("c", OPTIONS) is None


def test_a_name_gets_the_meaning_that_the_caller_knows() -> None:
    assert equivalent("-n", ["generate", "prompt"]) == ("generate", "llama-bench")
    assert equivalent("--max-model-len", ["OLLAMA_CONTEXT_LENGTH"]) == ("OLLAMA_CONTEXT_LENGTH", "vLLM")
    assert equivalent("--max-model-len", ["seed"]) is None


@pytest.mark.parametrize(
    ("typed", "near"),
    [("temprature", ["temperature"]), ("topk", ["top_k"]), ("seeds", ["seed"]), ("xyzzy", [])],
)
def test_misspelled_names_have_near_ones(typed: str, near: list[str]) -> None:
    assert near_names(typed, OPTIONS) == near


def test_a_suggestion_is_one_question() -> None:
    names = list(OPTIONS)
    foreign = "did you mean num_predict, which OpenAI's API calls max_tokens?"
    assert suggestion("max_tokens", names) == foreign
    assert suggestion("context", names) == "did you mean num_ctx?"
    assert suggestion("context", {"num_ctx": "PARAMETER num_ctx"}) == "did you mean PARAMETER num_ctx?"
    assert suggestion("sevre", ["serve", "run"]) == "did you mean serve?"
    assert suggestion("serv", ["serve", "service"]) == "did you mean serve or service?"
    assert suggestion("delete", ["rm"], VERBS) == "did you mean rm, which other programs call delete?"
    assert suggestion("xyzzy", names) == ""


def test_the_tables_name_only_things_that_exist() -> None:
    context = chaski_command.make_context("chaski", [], resilient_parsing=True)
    commands = chaski_command.list_commands(context)
    parameters = {
        normalized(word)
        for name in commands
        if (command := chaski_command.get_command(context, name)) is not None
        for parameter in command.params
        for word in parameter.opts
    }
    known = {*OPTIONS, *LoadOptions.__annotations__, *(row.name for row in variables()), *parameters}
    known |= {"keep_alive", "prompt_cache", "progress"}
    assert {ours for rows in FOREIGN.values() for row in rows for ours in row.ours} <= known
    assert {ours for rows in VERBS.values() for row in rows for ours in row.ours} <= {
        *commands,
        "install",
        "uninstall",
    }


def test_a_name_of_millions_of_letters_is_like_no_other() -> None:
    started = time.process_time()
    assert near_names("model" * 1_000_000, OPTIONS) == []
    assert time.process_time() - started < 1
