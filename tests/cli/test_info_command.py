from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.env import variables


def info() -> str:
    result = CliRunner().invoke(chaski_command, ["info"])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_chaski_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHASKI_THREADS")
    about = info().partition("  Environment\n")[0]
    lines = dict(line.strip().split("    ", 1) for line in about.splitlines() if line.startswith("    "))
    fields = {name: text.strip() for name, text in lines.items()}
    assert fields["version"] == chaski.__version__
    assert int(fields["threads"]) == int(fields["cores"]) >= 1
    assert fields["instruction set"] in fields["instruction sets here"].split(", ")
    assert fields["memory"].endswith(" available")


def test_the_environment_is_listed_and_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(variable.name in info() for variable in variables())
    monkeypatch.setenv("CHASKI_THREADS", "3")
    monkeypatch.setenv("CHASKI_ISA", "portable")
    output = info()
    assert "    threads                  3\n" in output
    assert "    instruction set          portable\n" in output


def test_an_instruction_set_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_ISA", "abacus")
    result = CliRunner().invoke(chaski_command, ["info"])
    assert result.exit_code == 1
    assert "instruction set 'abacus' is not available" in result.stderr


def test_facts_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    monkeypatch.setenv("OLLAMA_API_KEY", "hidden")
    result = CliRunner().invoke(chaski_command, ["info", "--json"])
    facts = json.loads(result.stdout)
    assert facts["version"] == chaski.__version__
    assert facts["threads"] == 1
    assert facts["instruction_set"] in facts["instruction_sets"]
    assert facts["memory_bytes"] > facts["available_bytes"] > 0
    settings = facts["environment"]
    assert settings.keys() == {row.name for row in variables()}
    assert settings["CHASKI_THREADS"]["value"] == "1"
    assert settings["OLLAMA_MAX_QUEUE"]["value"] is None
    assert "hidden" not in result.stdout
