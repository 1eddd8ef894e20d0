"""Typing, pasting and editing in a chat on a real terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminals import ROOT, Terminal, terminal

ECHO = ("-m", "tests.cli.echo_chat")
PROMPT = ">>> "
PASTE, PASTED = "\x1b[200~", "\x1b[201~"


@pytest.fixture
def chat() -> Iterator[Terminal]:
    with terminal(*ECHO) as found:
        found.wait_for("Send a message")
        found.wait_for_prompt(1)
        yield found


def leave(chat: Terminal) -> None:
    chat.type("/bye\r")
    assert chat.wait_for_end() == 0


def test_a_paste_of_three_lines_is_one_message(chat: Terminal) -> None:
    chat.type(f"{PASTE}one\rtwo\r\nthree\n{PASTED}\r")
    chat.wait_for("<'one\\ntwo\\nthree'>")
    chat.type("next\r")
    chat.wait_for("<'next'>")
    leave(chat)


@pytest.mark.long
def test_a_paste_that_would_steer_the_terminal(chat: Terminal) -> None:
    chat.type(f"{PASTE}a\x1b]0;title\x07b{PASTED}\r")
    chat.wait_for("<'a\\x1b]0;title\\x07b'>")
    assert b"\x1b]0;title" not in chat.seen
    leave(chat)


@pytest.mark.long
def test_quotes_around_a_paste(chat: Terminal) -> None:
    chat.type(f'"""{PASTE}one\n\ntwo{PASTED}"""\r')
    chat.wait_for("<'one\\n\\ntwo'>")
    chat.wait_for_prompt(2)
    chat.type('"""first\r')
    chat.wait_for("... ")
    chat.type('second"""\r')
    chat.wait_for("<'first\\nsecond'>")
    leave(chat)


def test_keys(chat: Terminal) -> None:
    keys = (
        ("one\ntwo", "one\\ntwo"),  # Ctrl-J
        ("hello world\x1bbbig ", "hello big world"),  # Alt-B
        ("one two\x1bb\x1bb\x1bf!", "one! two"),  # Alt-F
        ("world\x01hello \x05!", "hello world!"),  # Ctrl-A, Ctrl-E
        ("hello world\x01\x1b[C\x1b[C\x0b", "he"),  # arrows, Ctrl-K
        ("wrong\x15right", "right"),  # Ctrl-U
        ("right wrong\x17one", "right one"),  # Ctrl-W
        ("dropped\x03kept", "kept"),  # Ctrl-C
        ("ab\x01\x04", "b"),  # Ctrl-D in a line
    )
    for number, (typed, message) in enumerate(keys, 1):
        chat.wait_for_prompt(number)
        chat.type(f"{typed}\r")
        chat.wait_for(f"<'{message}'>")
    leave(chat)


def test_typing_ahead_while_an_answer_comes(chat: Terminal) -> None:
    chat.type("slow\r")
    chat.wait_for("<'slow'>")
    chat.type("next\r")
    chat.wait_for("<'next'>")
    leave(chat)


def test_ctrl_c_on_an_empty_line_says_how_to_leave(chat: Terminal) -> None:
    chat.type("\x03")
    chat.wait_for("Use Ctrl-D or /bye to leave.")
    chat.wait_for_prompt(2)
    chat.type("\x04")
    assert chat.wait_for_end() == 0


@pytest.mark.long
@pytest.mark.parametrize("key", ["\x07", "\x18\x05"])
def test_an_editor_goes_on_with_the_message(tmp_path: Path, key: str) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and\\nmore\\n" >> "$1"\n')
    editor.chmod(0o755)
    with terminal(*ECHO, OLLAMA_EDITOR=str(editor), EDITOR="false") as chat:
        chat.wait_for("Send a message")
        chat.type(f"begun{key}")
        chat.wait_for("more")
        chat.type("!\r")
        # An editor ends the last line, which does not add a line to the message.
        chat.wait_for("<'begun\\n and\\nmore!'>")
        leave(chat)
    with terminal(*ECHO, OLLAMA_EDITOR="false") as chat:
        chat.wait_for("Send a message")
        chat.type(f"kept{key}")
        chat.wait_for("Error: ")
        chat.wait_for(">>> kept")
        chat.type("!\r")
        chat.wait_for("<'kept!'>")
        leave(chat)


@pytest.mark.long
def test_tab_completes_commands(chat: Terminal) -> None:
    chat.type("/se\t para\t temp\t 0.5\r")
    chat.wait_for("Set parameter 'temperature' to '0.5'")
    chat.type("\t/sh\t par\t\r")
    chat.wait_for("temperature    0.5")
    leave(chat)


@pytest.mark.long
def test_tab_completes_models_and_paths(tmp_path: Path) -> None:
    (tmp_path / "a cat.png").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "note.txt").touch()
    with terminal(*ECHO, HOME=str(tmp_path)) as chat:
        chat.wait_for_prompt(1)
        chat.type("see ~/a\t and ~/fo\tn\t\r")
        chat.wait_for("<'see ~/a\\\\ cat.png and ~/folder/note.txt'>")
        chat.type(f"{tmp_path}/fo\t\r")
        chat.wait_for("Error: unknown command")
        chat.type("/load gui\t")
        chat.wait_for("/load guide:latest")
        chat.type("\x15")
        leave(chat)


@pytest.mark.long
def test_lines_of_before_come_back(tmp_path: Path) -> None:
    for message in ("first", "second"):
        with terminal(*ECHO, "--history", HOME=str(tmp_path)) as chat:
            chat.wait_for("Send a message")
            chat.type(f"{message}\r")
            chat.wait_for(f"<'{message}'>")
            chat.wait_for_prompt(2)
            chat.type(f"{PASTE}two\nlines{PASTED}\r")
            chat.wait_for("<'two\\nlines'>")
            leave(chat)
    history = tmp_path / ".ollama" / "history"
    assert history.read_text() == "first\n/bye\nsecond\n/bye\n"
    assert history.stat().st_mode & 0o777 == 0o600
    with terminal(*ECHO, "--history", HOME=str(tmp_path)) as chat:
        chat.wait_for("Send a message")
        chat.type("\x1b[A\x1b[A\x1b[A\x1b[A!\r")
        chat.wait_for("<'first!'>")
        leave(chat)


def test_a_plain_terminal() -> None:
    with terminal(*ECHO, TERM="dumb") as chat:
        chat.wait_for(PROMPT, times=2)  # the first prompt comes after loading the model
        chat.type("hello\n")
        chat.wait_for("<'hello'>")
        chat.wait_for(PROMPT, times=3)
        chat.type("\x04")
        assert chat.wait_for_end() == 0
        assert b"\x1b" not in chat.seen


def test_texts_of_others_do_not_steer_the_terminal(chat: Terminal) -> None:
    shown = "\\x1b]0;title\\x07\\x1b[2J\\x9b31mname:\tred"
    assert "knock knock\\x1b[31m" in chat.text
    assert "who is\\x1b[31m there?" in chat.text
    assert "unseen" not in chat.text
    chat.type("hostile\r/show template\r/show system\r")
    chat.wait_for(shown, times=3)
    chat.type("/show info\r")
    chat.wait_for("\\x1b[31mecho")
    leave(chat)
    assert b"title\x07" not in chat.seen
    assert "\x9b" not in chat.seen.decode()


def test_a_pipe_gets_texts_as_they_are() -> None:
    ended = subprocess.run([sys.executable, *ECHO], input=b"hostile\n", capture_output=True, cwd=ROOT)
    assert ended.returncode == 0
    assert "\x1b]0;title\x07\x1b[2J\x9b31m\rname:\tred\r\n" in ended.stdout.decode()


@pytest.mark.long
def test_errors_break_between_words() -> None:
    with terminal(*ECHO, columns=40) as chat:
        chat.wait_for("Send a message")
        chat.type("/set parameter max_new_tokens 3\r")
        chat.wait_for_prompt(2)
        leave(chat)
        begin = chat.text.index("Error: ")
        lines = chat.text[begin : chat.text.index("max_new_tokens?")].splitlines()
        assert max(map(len, lines)) < 40
        assert all(line.endswith((",", ";", "is")) or " " in line for line in lines[:-1])


def test_the_arrow_key_brings_back_a_whole_message(chat: Terminal) -> None:
    chat.type('"""first\rsecond"""\r')
    chat.wait_for("<'first\\nsecond'>")
    chat.wait_for_prompt(3)
    chat.type("\x1b[A\r")
    chat.wait_for("<'first\\nsecond'>", 2)
    # A message that was sent twice is one step of the history, and the lines of a message are none.
    chat.type("other\r")
    chat.wait_for("<'other'>")
    chat.type("\x1b[A\x1b[A\x1b[A\x01\x1b[A\r")
    chat.wait_for("<'first\\nsecond'>", 3)
    leave(chat)


@pytest.mark.long
def test_invalid_bytes_are_replaced(chat: Terminal) -> None:
    chat.type_bytes(b"caf\xe9\r")
    chat.wait_for("<'caf\ufffd'>")
    leave(chat)


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["iso8859-1", "ascii"])
def test_a_terminal_without_unicode(encoding: str) -> None:
    with terminal(*ECHO, PYTHONIOENCODING=encoding) as chat:
        chat.wait_for_prompt(1)
        chat.type_bytes("caf\u00e9\r".encode(encoding if encoding != "ascii" else "utf-8"))
        chat.wait_for("<'caf")
        chat.type("unicode\r/bye\r")
        assert chat.wait_for_end() == 0
        assert "Traceback" not in chat.text
        shown = {"iso8859-1": b"<'caf\xe9'>", "ascii": b"<'cafe'>"}
        assert shown[encoding] in chat.seen
        assert b'"x" ... - ?' in chat.seen
