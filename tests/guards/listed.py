"""The guards of `guards.toml`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["Guard", "guards"]


class Guard(Struct, frozen=True):
    """A few lines that prevent a fault.

    commit       the commit that brought them
    by           what should find the fault: `simulation`, or a fuzzing target
    now, before  the text in the file at `path`, and the text without the guard
    """

    commit: str
    what: str
    by: str
    path: str
    now: str
    before: str

    def removed_from(self, text: str) -> str:
        """Return the text of the file without the guard."""
        assert text.count(self.now) == 1, f"{self.path} has {text.count(self.now)} times {self.now!r}"
        return text.replace(self.now, self.before)


def guards() -> list[Guard]:
    data = Path(__file__).with_name("guards.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, list[Guard]])["guard"]
