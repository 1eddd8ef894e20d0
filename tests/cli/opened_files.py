"""Run a command of chaski; write the files that Python opened, with counts, to a JSON file.

    python -m tests.cli.opened_files OUT.json run MODEL ...

It needs a separate process, since an audit hook cannot be removed. While one exists, threads that start at
the same time cannot be traced, and coverage fails.
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
    """Count a file; the backend reads weights through its own descriptor, which is not a Python file."""
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
