from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator

import pytest

from chaski.cli import transfer
from chaski.cli.transfer import access_to, show_progress
from chaski.names import Digest, ModelName
from chaski.store.progress import StoreProgress

A = Digest("a" * 64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock by one that tests advance."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(events: Iterator[StoreProgress], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output to a terminal of 80 columns and 5 lines on stderr, up to a Ctrl-C."""
    stream = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        patched.setenv("COLUMNS", "80")
        patched.setenv("LINES", "5")
        with contextlib.suppress(KeyboardInterrupt):
            show_progress(events)
    return stream.getvalue()


def test_plain_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        StoreProgress("pulling manifest"),
        *[StoreProgress("pulling aa", A, 10, n) for n in range(10)],
        StoreProgress("a\x1b[2J"),
    ]
    show_progress(events)
    assert capsys.readouterr().err == "pulling manifest\npulling aa\na\\x1b[2J\n"


def test_a_bar_with_rate_and_time_left(clock: list[float]) -> None:
    line = transfer._Line("pulling aaaaaaaaaaaa", clock[0])
    for second in range(21):
        line.update(
            StoreProgress("", A, 4_700_000_000, 1_000_000_000 + second * 35_000_000), clock[0] + second
        )
    text = line.text(clock[0] + 20, 100)
    bar = "█" * 13 + " " * 24
    assert text == f"pulling aaaaaaaaaaaa:  36% ▕{bar}▏   1.7 GB/4.7 GB   35 MB/s  1m25s"
    assert len(text) < 100
    line.update(StoreProgress("", A, 4_700_000_000, 4_700_000_000), clock[0] + 21)
    done = line.text(clock[0] + 21, 100)
    assert "100% ▕██" in done
    assert done.rstrip().endswith("▏  4.7 GB")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (77, "1m17s"), (7260, "2h1m"), (360_000, "99h+"), (1e12, "99h+")],
)
def test_time_left(seconds: float, text: str) -> None:
    assert transfer._eta(seconds) == text


def test_the_screen(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def events() -> Iterator[StoreProgress]:
        for number in range(6):
            yield StoreProgress(f"step {number}")
            clock[0] += 1
        yield StoreProgress("pulling", A, 100, 50)
        clock[0] += 1

    screen = drawn(events(), monkeypatch)
    assert screen.startswith("\x1b[?25l\r\x1b[Kstep 0 ")
    assert screen.endswith("\x1b[?25h")
    # It draws no more lines than the screen has, and none over earlier text.
    frames = re.split(r"\x1b\[(\d)A", screen)
    heights = [frame.count("\n") for frame in frames[::2]]
    assert heights == [1, 2, 3, 4, 4, 4, 4, 4]
    assert [int(up) for up in frames[1::2]] == [1, 2, 3, 4, 4, 4, 4]
    assert "step 5\n\r\x1b[Kpulling:  50% ▕" in frames[-1]


def test_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def events() -> Iterator[StoreProgress]:
        yield StoreProgress("begin")
        raise KeyboardInterrupt

    assert drawn(events(), monkeypatch).endswith("\x1b[?25h")


def test_who_types_a_host_may_mean_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_PRIVATE_REGISTRIES", "other.lan")
    access = access_to(ModelName.parse("Models.lan:5000/a/b"), True, "me", "secret")
    assert access.private_hosts == {"models.lan:5000", "other.lan"}
    assert (access.insecure, access.username, access.password) == (True, "me", "secret")
