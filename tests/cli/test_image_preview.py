"""Pictures on terminals that can show them."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path

import pytest

from chaski.cli.image_preview import preview
from chaski.image import open_image
from tests.cli.terminals import terminal
from tests.image.pictures import png
from tests.tiny_vision import DATA

LARGE = png(400, 1000)


@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "xterm-kitty"},
        {"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"},
        {"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"},
    ],
)
def test_kitty(environment: dict[str, str]) -> None:
    parts = re.findall("\x1b_G([^;]*);([^\x1b]*)\x1b\\\\", preview(LARGE, environment))
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in parts) == preview(LARGE, environment)
    assert parts[0][0] == f"a=T,f=100,q=2,m={int(len(parts) > 1)}"
    assert [keys for keys, _ in parts[1:]] == ["q=2,m=1"] * (len(parts) - 2) + ["q=2,m=0"] * (len(parts) > 1)
    assert all(len(data) <= 4096 for _, data in parts)
    assert open_image(b64decode("".join(data for _, data in parts))).shape == (128, 320, 3)


@pytest.mark.parametrize(
    "environment",
    [{"TERM_PROGRAM": "iTerm.app"}, {"TERM_PROGRAM": "WezTerm"}, {"LC_TERMINAL": "iTerm2", "TERM": "xterm"}],
)
def test_iterm(environment: dict[str, str]) -> None:
    found = re.fullmatch("\x1b\\]1337;File=inline=1;size=(\\d+);[^:]*:(.*)\x07", preview(LARGE, environment))
    assert found is not None
    data = b64decode(found[2])
    assert len(data) == int(found[1])
    assert open_image(data).shape == (128, 320, 3)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TERM": "xterm-256color"},
        {"TERM": "xterm", "TERM_PROGRAM": "vscode"},
        {"TERM": "xterm", "TERM_PROGRAM": "Apple_Terminal"},
        {"TERM": "screen-256color", "TMUX": "/tmp/tmux", "KITTY_WINDOW_ID": "1"},
        {"TERM_PROGRAM": "iTerm.app", "STY": "1.pts"},
    ],
)
def test_other_terminals_get_nothing(environment: dict[str, str]) -> None:
    assert preview(LARGE, environment) == ""


def test_small_pictures_stay_small_and_broken_ones_are_not_shown() -> None:
    text = preview(png(20, 33), {"TERM": "xterm-kitty"})
    assert open_image(b64decode(text.partition(";")[2][:-2])).shape == (20, 33, 3)
    assert preview(LARGE[:500], {"TERM": "xterm-kitty"}) == ""


@pytest.mark.long
@pytest.mark.parametrize("term", ["xterm-kitty", "xterm"])
def test_in_a_chat(tmp_path: Path, term: str) -> None:
    (tmp_path / "cat.png").write_bytes(png(20, 33))
    arguments = ("run", str(DATA / "mistral3.gguf"), "--temperature", "0", "--num-predict", "4")
    cleared = dict.fromkeys(("TMUX", "STY", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID"), "")
    with terminal("-m", "chaski", *arguments, TERM=term, HOME=str(tmp_path), **cleared) as chat:
        chat.wait_for_prompt(1)
        chat.type("see ~/ca\t\r")
        chat.wait_for("Added image")
        chat.wait_for_prompt(2)
        assert (b"\x1b_Ga=T" in chat.seen) == (term == "xterm-kitty")
        chat.type("/bye\r")
        assert chat.wait_for_end() == 0
