"""The constraint of an answer (format, regex, choice, grammar) alongside thoughts and demanded calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from chaski.chat.options import CONSTRAINTS
from chaski.errors import OptionError

if TYPE_CHECKING:
    from chaski.text.parsers import Lead

__all__ = ["after_thinking", "is_constrained", "require_no_other", "require_unconstrained"]


def after_thinking(options: Mapping[str, Any], lead: Lead | None) -> dict[str, Any]:
    """Return options whose constraint, if there is one, leaves room for thinking before it."""
    return {**({"format_thought": asdict(lead)} if lead and is_constrained(options) else {}), **options}


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
