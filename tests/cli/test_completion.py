"""Completion in shells, requested as the scripts do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.cli.typed_words import Words, completions

ROOT = Path(__file__).parents[2]


def completed(words: str, number: int) -> list[str]:
    """Return the completions that the shell would offer."""
    asked = {"_CHASKI_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    done = subprocess.run(
        [sys.executable, "-c", "from chaski.cli.main import main; main()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(chaski_command, ["completion", shell])
    assert done.exit_code == 0
    assert f"_CHASKI_COMPLETE={shell}_complete" in done.output
    if shutil.which(shell):
        (tmp_path / "script").write_text(done.output)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_other_shells_are_refused() -> None:
    done = CliRunner().invoke(chaski_command, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'tcsh' is not one of" in done.output


def test_commands_options_and_models_are_offered() -> None:
    assert completed("chaski veri", 1) == ["verify"]
    assert "--num-predict" in completed("chaski run --num", 2)
    assert completed("chaski run gui", 2) == ["guide:latest"]
    assert completed("chaski run nothing-like-that", 2) == []


def test_files_are_left_to_the_shell() -> None:
    done = CliRunner().invoke(
        chaski_command,
        env={"_CHASKI_COMPLETE": "bash_complete", "COMP_WORDS": "chaski run ./mod", "COMP_CWORD": "2"},
        prog_name="chaski",
    )
    assert done.output == "file,./mod\n"


def test_words_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".hidden", "a b.png", "ab.txt", "bad\x1b.png"):
        (tmp_path / name).touch()
    (tmp_path / "abc").mkdir()
    monkeypatch.chdir(tmp_path)
    words: Words = {"/set": {"think": {"low": None, "high": None}}, "/load": lambda begun: [f"{begun}!"]}
    for text, expected in (
        ("/s", ["/set"]),
        ("/set think h", ["high"]),
        ("/set think x", []),
        ("/load a", ["a!"]),
        ("", []),
        ("a", []),
        ("see ./a", ["./a\\ b.png", "./ab.txt", "./abc/"]),
        ("see './a", ["./a\\ b.png", "./ab.txt", "./abc/"]),
        ("./a\\ ", ["./a\\ b.png"]),
        ("./.h", ["./.hidden"]),
        ("./b", []),
        ("no/ab", []),
        (f"/set system {tmp_path}/ab", [f"{tmp_path}/ab.txt", f"{tmp_path}/abc/"]),
    ):
        assert [word for word, _ in completions(words, text)] == expected
        assert all(0 <= length <= len(text) for _, length in completions(words, text))
