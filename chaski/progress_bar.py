"""A bar for what takes a while, where somebody watches and it takes long enough."""

from __future__ import annotations

import sys
import time

__all__ = ["ProgressBar"]

_PATIENCE_SECONDS = 0.3
_WIDTH = 25


class ProgressBar:
    """Call it with the done share, from 0 to 1. Draws on stderr, and leaves nothing behind."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn = -1

    def __call__(self, share: float) -> None:
        percent = int(100 * share)
        is_late = time.monotonic() - self._started > _PATIENCE_SECONDS
        if percent > self._drawn and is_late and sys.stderr.isatty():
            bar = ("█" * (percent * _WIDTH // 100)).ljust(_WIDTH)
            _write(f"\r{self._label} {percent:3d}% ▕{bar}▏")
            self._drawn = percent

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._drawn >= 0:
            _write("\r\x1b[K")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
