"""A progress bar for long operations, shown only on a terminal."""

from __future__ import annotations

import sys
import time

__all__ = ["ProgressBar"]

_PATIENCE_SECONDS = 0.3
_WIDTH = 25
_DETAIL_SECONDS = 0.2


class ProgressBar:
    """Draws a bar on stderr and removes it at the end. Call it with the completed share, from 0 to 1."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn, self._drawn_at = -1, 0.0

    def __call__(self, share: float, detail: str = "") -> None:
        """Redraw the bar, followed by `detail`, if either has changed. Redraws for the detail are limited."""
        percent, now = int(100 * share), time.monotonic()
        is_late = now - self._started > _PATIENCE_SECONDS
        is_news = percent > self._drawn or (detail and now - self._drawn_at > _DETAIL_SECONDS)
        if is_news and is_late and sys.stderr.isatty():
            bar = ("█" * (percent * _WIDTH // 100)).ljust(_WIDTH)
            rest = f" {detail}\x1b[K" if detail else ""
            _write(f"\r{self._label} {percent:3d}% ▕{bar}▏{rest}")
            self._drawn, self._drawn_at = percent, now

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._drawn >= 0:
            _write("\r\x1b[K")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
