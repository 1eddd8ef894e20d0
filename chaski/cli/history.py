"""What was typed in chats before, for the arrow keys: a short private file, the one that Ollama keeps."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["line_editing"]

_MAX_LINES = 100


@contextmanager
def line_editing(is_kept: bool) -> Iterator[None]:
    """Edit lines that are typed, with those of earlier chats; keep them at the end where `is_kept`."""
    if not sys.stdin.isatty():
        yield
        return
    # Importing it is what gives `input` line editing and a history.
    readline = import_module("readline")
    path = Path.home() / ".ollama" / "history"
    for line in _read(path) if is_kept else ():
        readline.add_history(line)
    try:
        yield
    finally:
        if is_kept:
            with suppress(OSError):  # a chat is not worth less without it
                _write(path, _typed(readline))


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-_MAX_LINES:]
    except OSError:
        return []


def _typed(readline: Any) -> list[str]:
    count = readline.get_current_history_length()
    first = max(1, count - _MAX_LINES + 1)
    lines = [readline.get_history_item(number) for number in range(first, count + 1)]
    return [line for line in lines if line]


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file at once; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"history.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
