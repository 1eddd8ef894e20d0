"""The text of the guide: topics with an answer and several wordings of the question, read from topics/*.toml.

Three sets of wordings: `wordings` to train on, one `tuning` wording to choose a checkpoint by, and `held_out`
ones that are only ever measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHAT_TEMPLATE",
    "END",
    "SYSTEM",
    "USER",
    "Topic",
    "Turn",
    "load_topics",
    "render",
    "unsure",
]

BOS, END, SYSTEM, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that can be asked: its answer, the page that tells more, and the ways to ask it."""

    name: str
    page: str
    answer: str
    wordings: tuple[str, ...]
    tuning: str
    held_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer, as they stand in a chat."""

    question: str
    answer: str


def load_topics(folder: Path = Path(__file__).parent / "topics") -> list[Topic]:
    """All topics, in the order of file names and of tables within a file."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(folder.glob("*.toml"))]
    return [
        Topic(
            name,
            table["page"],
            table["answer"],
            tuple(table["wordings"].splitlines()),
            table["tuning"],
            tuple(table["held_out"].splitlines()),
        )
        for tables_of_file in tables
        for name, table in tables_of_file.items()
    ]


def unsure(page: str) -> str:
    """The answer to a question that is unclear, and about something that `page` describes."""
    return f"I am not sure. Perhaps `{page}` tells; or ask me in other words."


def render(turns: Sequence[Turn], question: str, system: str | None = None) -> str:
    """The text that CHAT_TEMPLATE makes of finished turns and a question, up to where the answer begins."""
    opening = "" if system is None else f"{SYSTEM}\n{system}{END}\n"
    past = "".join(f"{USER}\n{t.question}{END}\n{ASSISTANT}\n{t.answer}{END}\n" for t in turns)
    return f"{BOS}{opening}{past}{USER}\n{question}{END}\n{ASSISTANT}\n"
