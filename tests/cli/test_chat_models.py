"""Chats with other models, models made from a chat, and the history of typed lines."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from chaski.cli.session import Session
from tests.cli.chatting import opened, said, talk

ROOT = Path(__file__).parents[2]


def test_a_chat_is_saved_and_loaded(
    own_store: None,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = opened(tiny_llama)
    lines = ("/set system be brief", "hello", "/save mine", "/list", "/load mine", "/show system")
    talk(session, monkeypatch, *lines)
    output = capsys.readouterr().out
    assert "Created new model 'mine'" in output
    assert "mine:latest" in output
    assert output.rstrip().endswith("be brief")
    assert (session.history, session.name) == ([], "mine")
    defaults = session.model.defaults
    assert [turn["content"] for turn in defaults.opening][:1] == ["hello"]
    assert defaults.options == {"temperature": 0, "num_predict": 6}
    talk(session, monkeypatch, "/show modelfile")
    assert "SYSTEM be brief" in capsys.readouterr().out
    session.model.close()


def test_what_cannot_be_loaded_changes_nothing(
    own_store: None,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = opened(tiny_llama)
    lines = ("hello", "/load nothing", "/load", "/save", "/save ../x", "/show license", "still here")
    talk(session, monkeypatch, *lines)
    errors = capsys.readouterr().err
    for text in ("no file 'nothing'", "/load needs", "/save needs", "license"):
        assert text in errors
    assert said(session) == ["hello", "still here"]
    session.model.close()


def test_formats(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(session, monkeypatch, "/set format json", "hello")
    assert session.history[-1]["content"].lstrip().startswith("{")
    talk(session, monkeypatch, "/set noformat")
    assert "format" not in session.options


@pytest.mark.long
@pytest.mark.parametrize("kept", [True, False])
def test_typed_lines_are_kept_for_the_next_chat(tiny_llama: Path, tmp_path: Path, kept: bool) -> None:
    folder = tmp_path / ".ollama"
    folder.mkdir()
    (folder / "history").write_text("".join(f"old {number}\n" for number in range(150)))
    arguments = [str(tiny_llama), "--num-predict", "1", *([] if kept else ["--nohistory"])]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "chaski", "run", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, b"hello there\n/bye\n")
    try:
        while os.read(ours, 4096):
            pass
    except OSError:
        pass  # the end of a terminal
    assert process.wait(30) == 0
    os.close(ours)
    lines = (folder / "history").read_text().splitlines()
    if kept:
        assert lines == [f"old {number}" for number in range(52, 150)] + ["hello there", "/bye"]
        assert (folder / "history").stat().st_mode & 0o777 == 0o600
    else:
        assert len(lines) == 150
    assert [path.name for path in folder.iterdir()] == ["history"]
