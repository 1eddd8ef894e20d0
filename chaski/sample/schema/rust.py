"""Patterns in the syntax of Rust's `regex`, which `llguidance` reads."""

from __future__ import annotations

from chaski.sample.schema.characters import ANY, Ranges, class_items
from chaski.sample.schema.ecma import Chars, Choice, Concat, Node, Property, Repeat

__all__ = ["spelled", "spelled_class"]

_NONE = r"[^\x{0}-\x{10FFFF}]"


def spelled(node: Node) -> str:
    """Return a node that contains no assertion."""
    match node:
        case Chars(ranges):
            return spelled_class(ranges)
        case Property(text):
            return rf"[{text}&&[^\x{{0}}]]"
        case Concat(parts):
            return "".join(
                f"(?:{spelled(part)})" if isinstance(part, Choice) else spelled(part) for part in parts
            )
        case Choice(options):
            return "|".join(map(spelled, options))
        case Repeat(part, least, most):
            return f"(?:{spelled(part)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"{type(node).__name__} has no spelling")


def spelled_class(ranges: Ranges) -> str:
    """Return a set of characters as a class.

    NUL is in no class but that of all characters. `llguidance` takes a class with all control characters for
    one that contains the quote and the backslash as well.
    """
    if ranges == ANY:
        return r"(?s:.)"
    items = class_items((first or 1, last) for first, last in ranges if last)
    return f"[{items}]" if items else _NONE
