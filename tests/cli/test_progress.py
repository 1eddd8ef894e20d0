from __future__ import annotations

import io

import pytest

from chaski.progress_bar import ProgressBar


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def drawn(monkeypatch: pytest.MonkeyPatch, step: float, shares: list[float], is_terminal: bool = True) -> str:
    """Return the output of loading when each of the shares takes `step` seconds."""
    now = [100.0]
    stream = Stream(is_terminal)
    with monkeypatch.context() as patched:
        patched.setattr("chaski.progress_bar.time.monotonic", lambda: now[0])
        patched.setattr("sys.stderr", stream)
        bar = ProgressBar("loading")
        for share in shares:
            now[0] += step
            bar(share)
        bar.close()
    return stream.getvalue()


def test_nothing_is_drawn_when_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 0.09, [0.1, 0.5, 1.0]) == ""


def test_a_bar_is_drawn_when_it_takes_longer_and_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 0.2, [0.1, 0.2, 0.2, 0.201, 0.6]).split("\r")[1:]
    assert [line[:12] for line in lines] == ["loading  20%", "loading  60%", "\x1b[K"]
    assert lines[1].count("█") == 15


def test_only_a_terminal_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 1.0, [0.5, 1.0], is_terminal=False) == ""
