"""How much a model thinks: the levels, in the words of all APIs, and their numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from chaski.chat.formats import Think

__all__ = ["EFFORTS", "Effort", "effort_of", "template_level"]


class Effort(Struct, frozen=True):
    """A level of thinking.

    level   the word for templates, which know few of them
    budget  tokens of thoughts at most; None for no limit
    share   the most of an answer that is thoughts, in percent, so that some of it remains for the text
    """

    level: str
    budget: int | None
    share: int

    def budget_of(self, room: int) -> int:
        """Return the budget for an answer of at most `room` tokens; -1 for no limit."""
        return -1 if self.budget is None else min(self.budget, room * self.share // 100)


EFFORTS: Mapping[str, Effort] = {
    "minimal": Effort("low", 512, 10),
    "low": Effort("low", 1024, 20),
    "medium": Effort("medium", 8192, 50),
    "high": Effort("high", 24576, 80),
    "xhigh": Effort("max", 32768, 95),
    "max": Effort("max", None, 100),
}
"""The budgets of low, medium and high are those of Google's API. The shares leave room for the answer."""

_NONE = Effort("", 0, 0)


def effort_of(think: Think) -> Effort | None:
    """Return the effort that a request asks for; None if it leaves the amount to the model."""
    return EFFORTS.get(think) if isinstance(think, str) else _NONE if think is False else None


def template_level(think: Think) -> Think:
    """Return `think` in the words that templates know."""
    return EFFORTS[think].level if isinstance(think, str) and think in EFFORTS else think
