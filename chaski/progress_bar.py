"""A bar for what takes a while, where somebody watches and it takes long enough."""

from __future__ import annotations

import sys
import time

__all__ = ["ProgressBar"]

_PATIENCE_SECONDS = 0.3
_WIDTH = 25
_DETAIL_SECONDS = 0.2


class ProgressBar:
    """Call it with the done share, from 0 to 1. Draws on stderr, and leaves nothing behind."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn, self._drawn_at = -1, 0.0

    def __call__(self, share: float, detail: str = "") -> None:
        """Draw it, with a `detail` behind it, where it has moved, or the detail has for some time."""
        percent, now = int(100 * share), time.monotonic()
        is_late = now - self._started > _PATIENCE_SECONDS
        is_news = percent > self._drawn or (detail and now - self._drawn_at > _DETAIL_SECONDS)
        if is_news and is_late and sys.stderr.isatty():
            bar = ("█" * (percent * _WIDTH // 100)).ljust(_WIDTH)
            rest = f" {detail}\x1b[K" if detail else ""
            _write(f"\r{self._label} {percent:3d}% ▕{bar}▏{rest}")
            self._drawn, self._drawn_at = percent, now

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._drawn >= 0:
            _write("\r\x1b[K")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
