"""Lines that break between words, as a terminal shows them."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest

from chaski.cli.wrap import WordWrap
from tests.speaking_llama import write_speaking_llama

ROOT = Path(__file__).parents[2]


def shown(printed: str) -> list[str]:
    """Return the lines of a terminal, without erased text."""
    lines = [""]
    for part in re.findall(r"\x1b\[(\d+)D\x1b\[K|(\n)|([^\x1b\n]+)", printed):
        back, newline, text = part
        if newline:
            lines.append("")
        else:
            lines[-1] = lines[-1][: -int(back)] if back else lines[-1] + text
    return lines


@pytest.mark.parametrize("columns", [15, 24, 60])
@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_words_stay_whole(columns: int, cut: int) -> None:
    """The result equals the standard library's for the whole text."""
    chosen = random.Random(columns)
    words = ["".join(chosen.choices("abcdefg", k=chosen.randint(1, 9))) for _ in range(200)]
    text = " ".join(words) + "\n\n" + " ".join(words[:50])
    wrap = WordWrap(columns)
    printed = "".join(wrap.feed(text[begin : begin + cut]) for begin in range(0, len(text), cut))
    paragraphs = [textwrap.wrap(each, columns - 5) or [""] for each in text.split("\n")]
    assert [line.rstrip() for line in shown(printed)] == [line for lines in paragraphs for line in lines]


def test_what_fits_into_no_line_breaks_anywhere() -> None:
    assert shown(WordWrap(15).feed("ab " + "x" * 25)) == ["ab ", "x" * 10, "x" * 10, "x" * 5]
    assert shown(WordWrap(15).feed("\u4f60" * 12)) == ["\u4f60" * 5, "\u4f60" * 5, "\u4f60" * 2]
    assert shown(WordWrap(15).feed("e\u0301" * 10 + " b")) == ["e\u0301" * 10, "b"]
    for columns in (0, 14):
        assert WordWrap(columns).feed("word " * 9) == "word " * 9


@pytest.mark.parametrize("option", ["--nomarkdown", "--nowordwrap"])
def test_on_a_terminal(tmp_path: Path, option: str) -> None:
    words = ["one ", "two ", "three ", "four ", "fi", "ve ", "six"]
    model = write_speaking_llama(tmp_path / "speaker.gguf", {"count": words})
    command = [sys.executable, "-m", "chaski", "run", str(model), "count", option]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CHASKI_THREADS": "1", "OLLAMA_HOST": "127.0.0.1:1"}
    environment.pop("COLUMNS", None)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.wait(30) == 0
    os.close(theirs)
    printed = os.read(ours, 4096).decode().replace("\r\n", "\n")
    os.close(ours)
    is_wrapped = option == "--nomarkdown"
    expected = ["one two three ", "four five six", ""] if is_wrapped else ["one two three four five six", ""]
    assert shown(printed) == expected
