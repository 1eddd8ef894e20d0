"""`chaski models`, and its table of formats and converters; test_measured.py tests the rest."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.cli.model_table import model_rows
from chaski.convert.families import ENCODERS, TEXT_PARTS, families
from chaski.model.drafts import ATTACHED
from chaski.model.registry import ARCHITECTURES
from chaski.text.parsers.formats import FORMATS
from tests.cli.test_completion import completed


def models(*arguments: str) -> str:
    result = CliRunner().invoke(chaski_command, ["models", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_architecture_has_a_row_that_fits_a_terminal() -> None:
    table, others = models().rstrip().split("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:]] == sorted(ARCHITECTURES)
    assert max(map(len, models().splitlines())) < 80
    assert "pip install 'chaski-llm[llama-cpp]'" in others.replace("\n", " ")


def test_the_table_says_what_models_can_do() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in models().splitlines() if line}
    assert rows["nomic-bert"][:6] == ["-", "-", "yes", "-", "-", "-"]
    assert rows["mistral3"][:6] == ["yes", "yes", "file", "yes", "yes", "yes"]
    assert rows["lfm2"][5] == "yes"
    assert rows["bert"][5] == "-"


@pytest.mark.parametrize("words", ["ministral", "Ministral 3", "ministral-3", "mistral3"])
def test_facts_are_found_by_a_part_of_a_name(words: str) -> None:
    output = models(words)
    assert "  mistral3\n" in output
    assert "Mistral3ForConditionalGeneration" in output
    assert "qwen3" not in output
    assert max(map(len, output.splitlines())) < 80


def test_json_has_all_facts() -> None:
    rows = {row["architecture"]: row for row in json.loads(models("--json"))}
    assert rows.keys() == ARCHITECTURES.keys()
    of_text = ["MiniCPMV4_6ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"]
    assert rows["qwen35"]["converter"] == of_text
    assert rows["gemma3n"]["differences"].keys() == {"transformers"}
    assert [row["architecture"] for row in json.loads(models("gpt-oss", "--json"))] == ["gpt-oss"]


def test_what_is_not_native_names_the_command_that_installs_the_extra() -> None:
    result = CliRunner().invoke(chaski_command, ["models", "wavtokenizer"])
    assert result.exit_code == 1
    assert "no native architecture fits 'wavtokenizer'" in result.stderr
    assert "pip install 'chaski-llm[llama-cpp]'" in result.stderr


def test_names_are_completed() -> None:
    assert completed("chaski models qwen35", 2) == ["qwen35", "qwen35moe"]


def test_every_converter_of_a_model_is_in_a_row() -> None:
    drafts = {name for name, module in families().items() if module.FAMILY.architecture in ATTACHED}
    assert {name for row in model_rows() for name in row.converter} == {
        *families(),
        *ENCODERS,
        *TEXT_PARTS,
    } - drafts


def test_formats_are_those_of_answers_with_calls_and_thoughts() -> None:
    for name, description in ARCHITECTURES.items():
        assert all(FORMATS[format].thinks for format in description.thinking), name
        for format in description.tools:
            assert FORMATS[format].blocks or format in ("glimmer", "harmony"), name
