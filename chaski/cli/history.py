"""The input history of chats for the arrow keys: a short private file, shared with Ollama."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["InputHistory"]

_MAX_LINES = 100


class InputHistory:
    """Lines of earlier chats and of this one, oldest first. Messages of several lines are not kept."""

    def __init__(self, is_kept: bool) -> None:
        self._path = Path.home() / ".ollama" / "history"
        self._is_kept = is_kept
        self.lines = _read(self._path) if is_kept else []

    def add(self, line: str) -> None:
        """Add a typed line."""
        if line.strip() and "\n" not in line:
            self.lines.append(line)

    def save(self) -> None:
        """Write the last lines to the file, if the history is enabled and the file can be written."""
        if self._is_kept:
            with suppress(OSError):  # a chat works without a history
                _write(self._path, self.lines[-_MAX_LINES:])


def _read(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()[-_MAX_LINES:]
    except OSError:
        return []


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file atomically; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"history.{secrets.token_hex(8)}")
    try:
        with os.fdopen(
            os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
