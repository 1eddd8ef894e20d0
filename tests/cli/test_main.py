from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command

ROOT = Path(__file__).parents[2]


def chaski_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chaski", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False, **options
    )


def test_every_command_is_listed_and_has_help() -> None:
    listed = CliRunner().invoke(chaski_command, ["--help"])
    for name in ("run", "show", "info", "bench"):
        assert f"\n  {name} " in listed.output
        assert CliRunner().invoke(chaski_command, [name, "--help"]).exit_code == 0


@pytest.mark.timed
def test_help_is_quick() -> None:
    # 0.1 s of processor time; other load on the machine does not count, but slows it down.
    assert min(_seconds_of_help() for _ in range(3)) < 0.3


def _seconds_of_help() -> float:
    """Return the processor seconds of the process that shows the help."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "Usage: chaski" in chaski_process("--help").stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_needs_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from chaski.cli.main import chaski_command;"
        "CliRunner().invoke(chaski_command, ['--help']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = set(done.stdout.split())
    assert "chaski.cli.bench" in loaded
    assert not loaded & {"numpy", "jinja2", "tokenizers", "chaski._native", "chaski.formats.gguf"}


def test_the_version_is_the_packages() -> None:
    output = CliRunner().invoke(chaski_command, ["--version"]).output
    assert output == f"chaski version {chaski.__version__}\n"


def test_errors_are_one_line_on_stderr() -> None:
    done = chaski_process("run", "nowhere.gguf", "hello")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: no file 'nowhere.gguf'")
    assert done.stderr.count("\n") == 1


def test_other_exceptions_stay_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: str) -> Path:
        raise ZeroDivisionError

    monkeypatch.setattr("chaski.store.model.find_model", fail)
    assert isinstance(CliRunner().invoke(chaski_command, ["show", "guide"]).exception, ZeroDivisionError)


def test_unknown_commands_and_bad_options() -> None:
    for arguments in (["fly"], ["run"], ["bench", "x", "--prompt", "0"]):
        assert CliRunner().invoke(chaski_command, arguments).exit_code == 2
