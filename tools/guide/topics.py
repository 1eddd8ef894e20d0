"""The text of the guide: topics with an answer and several wordings of the question, read from topics/*.toml.

Three sets of wordings: `wordings` to train on, one `tuning` wording to calibrate by, and `held_out` ones that
are only ever measured.

The first token of an answer spells its first words, as many as no other answer begins with: with this token
the guide chooses a topic. Where two topics are likely, one token says that first, and the second answer
follows the first one. Where none is likely, the first token says that the guide is not sure, and names a
page.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHAT_TEMPLATE",
    "EITHER",
    "END",
    "OR_ELSE",
    "SYSTEM",
    "USER",
    "Topic",
    "Turn",
    "beginnings",
    "doubt",
    "load_topics",
    "render",
    "unsure",
]

BOS, END, SYSTEM, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
EITHER, OR_ELSE = "Perhaps one of these is it.\n\n", "\n\nOr this:\n\n"

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

    @property
    def removes(self) -> bool:
        """Whether its answer names a command that removes something."""
        return re.search(r"pip uninstall|chaski rm|--empty|chaski prune", self.answer) is not None


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
            tuple(table["wordings"].strip().splitlines()),
            table["tuning"],
            tuple(table["held_out"].strip().splitlines()),
        )
        for tables_of_file in tables
        for name, table in tables_of_file.items()
    ]


def doubt(page: str) -> str:
    """The beginning of the answer to an unclear question about something that `page` describes."""
    return f"I am not sure. Perhaps `{page}`"


def unsure(page: str) -> str:
    """All of that answer."""
    return f"{doubt(page)} tells; or ask me in other words."


def beginnings(topics: Sequence[Topic]) -> list[str]:
    """The first words of each answer, at least two, that no other answer begins with.

    All of it where it is the beginning of another one. Equal answers have equal beginnings.
    """
    answers = sorted({topic.answer for topic in topics})
    found = {}
    for index, answer in enumerate(answers):
        neighbours = answers[max(0, index - 1) : index + 2]
        shared = max(_shared(answer, other) for other in neighbours if other != answer)
        ends = [match.end() for match in re.finditer(r"\S+", answer)]
        found[answer] = answer[: next((end for end in ends[1:] if end > shared), len(answer))]
    return [found[topic.answer] for topic in topics]


def _shared(first: str, second: str) -> int:
    """How many characters two texts share at their beginnings."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def render(turns: Sequence[Turn], question: str, system: str | None = None) -> str:
    """The text that CHAT_TEMPLATE makes of finished turns and a question, up to where the answer begins."""
    opening = "" if system is None else f"{SYSTEM}\n{system}{END}\n"
    past = "".join(f"{USER}\n{t.question}{END}\n{ASSISTANT}\n{t.answer}{END}\n" for t in turns)
    return f"{BOS}{opening}{past}{USER}\n{question}{END}\n{ASSISTANT}\n"
