"""The constraint of an answer (format, regex, choice, grammar) alongside thoughts and demanded calls.

Constraints begin after a thought, and budgets end one. Both need the text around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from chaski.chat.beams import is_search
from chaski.chat.options import CONSTRAINTS
from chaski.errors import OptionError

if TYPE_CHECKING:
    from chaski.chat.efforts import Effort
    from chaski.chat.formats import ChatFormat
    from chaski.text.parsers import Lead

__all__ = ["has_budget", "is_constrained", "require_no_other", "require_unconstrained", "with_prefix"]


def with_prefix(
    chat_format: ChatFormat,
    lead: Lead | None,
    options: Mapping[str, Any],
    effort: Effort | None = None,
    may_call: bool = False,
) -> dict[str, Any]:
    """Return the option for the thought before an answer, where a constraint or a budget must know it.

    may_call: a call of a tool may follow the thought
    """
    is_limited = has_budget(options) or effort is not None
    if lead is None or is_search(options) or not (is_limited or is_constrained(options)):
        return {}
    limited = {"end": chat_format.end_of_thought(lead), "may_call": may_call} if is_limited else {}
    return {"format_thought": {**asdict(lead), **limited}}


def has_budget(options: Mapping[str, Any]) -> bool:
    """Return whether options limit the tokens of thoughts."""
    return options.get("reasoning_budget") not in (None, -1)


def is_constrained(options: Mapping[str, Any]) -> bool:
    """Return whether the answer is constrained."""
    return any(options.get(name) is not None for name in CONSTRAINTS)


def require_no_other(options: Mapping[str, Any]) -> None:
    """Refuse a constraint alongside a call that is demanded; a format gives way to it."""
    other = next((name for name in CONSTRAINTS[1:] if options.get(name) is not None), None)
    if other:
        raise OptionError(f"tool_choice and option {other} exclude each other; give one")


def require_unconstrained(options: Mapping[str, Any], tool_choice: str) -> None:
    """Refuse a constraint of an answer that a text begins, since constraints hold from the first token on."""
    other = next((f"option {name}" for name in CONSTRAINTS if options.get(name) is not None), None)
    if other is None and tool_choice not in ("auto", "none"):
        other = "tool_choice"
    if other:
        raise OptionError(f"a begun answer and {other} exclude each other; give one")
