"""Runs a command of chaski; writes which files Python opened, and how often, into a file of JSON.

    python -m tests.cli.opened_files OUT.json run MODEL ...

It has a process of its own, since a hook for what Python opens cannot be taken away: as long as one is there,
threads that start at the same time cannot be traced, with which coverage fails.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from chaski.cli.main import chaski_command

__all__: list[str] = []

opened: Counter[str] = Counter()


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Count a file; the backend reads weights by a descriptor of its own, which is no file of Python's."""
    if event == "open" and isinstance(arguments[0], str | Path) and arguments[1]:
        opened[str(arguments[0])] += 1


if __name__ == "__main__":
    out, *command = sys.argv[1:]
    sys.addaudithook(note)
    try:
        chaski_command(command)
    finally:
        counts = dict(opened)
        Path(out).write_text(json.dumps(counts))
