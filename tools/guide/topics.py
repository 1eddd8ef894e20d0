"""The text of the guide: topics with an answer and wordings of the question, from topics/*.toml.

There are three sets of wordings: `wordings` for training, a `tuning` wording for calibration, and `held_out`
ones for measuring only.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BOTH", "DOUBT", "Topic", "load_topics"]

BOTH = "Perhaps one of these is it.\n\n{first}\n\nOr this:\n\n{second}"
DOUBT = "I am not sure. Perhaps `{page}` tells; or ask me in other words."


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its answer, the page with more details, and the wordings of its question."""

    name: str
    page: str
    answer: str
    wordings: tuple[str, ...]
    tuning: str
    held_out: tuple[str, ...]

    @property
    def removes(self) -> bool:
        """Return whether its answer names a command that removes something."""
        return re.search(r"pip uninstall|chaski rm|--empty|chaski prune", self.answer) is not None


def load_topics(folder: Path = Path(__file__).parent / "topics") -> list[Topic]:
    """Return all topics, in the order of file names and of tables within a file."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(folder.glob("*.toml"))]
    return [
        Topic(
            name,
            table["page"],
            table["answer"],
            tuple(table["wordings"].strip().splitlines()),
            table["tuning"],
            tuple(table["held_out"].strip().splitlines()),
        )
        for tables_of_file in tables
        for name, table in tables_of_file.items()
    ]
