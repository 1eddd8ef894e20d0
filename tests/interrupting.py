"""Interrupts at chosen lines of the runner and of its caches."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import chaski

__all__ = ["Lines", "raise_exception", "raise_signal"]

PACKAGE = Path(chaski.__file__).parent
TRACED = tuple(str(PACKAGE / room) for room in ("runner", "kvcache"))


class Lines:
    """Counts the lines of chaski that this thread runs, and calls a function before one of them."""

    def __init__(self, at: int, act: Callable[[], None], left_out: str = "") -> None:
        self.count = 0
        self.seen: dict[tuple[str, int], list[int]] = {}
        self._at = at
        self._act = act
        self._left_out = left_out

    def __enter__(self) -> Lines:
        self._others = sys.gettrace()  # coverage's tracer, if it runs
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        sys.settrace(self._others)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        is_left_out = bool(self._left_out) and name.endswith(self._left_out)
        return self._line if name.startswith(TRACED) and not is_left_out else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            self.seen.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.count)
            if self.count == self._at:
                self._act()
        return self._line


def raise_signal() -> None:
    signal.raise_signal(signal.SIGINT)


def raise_exception() -> None:
    raise KeyboardInterrupt
