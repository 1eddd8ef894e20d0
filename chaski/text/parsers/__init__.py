"""Parsers of what models write: streamed text to content, thinking and tool calls.

A parser is a machine with `feed(text)` and `flush()`. What it gives, joined, does not depend on how the
text was cut. Text that looks like a tool call and is none comes out as content; nothing is lost.
"""

from __future__ import annotations

from chaski.text.parsers.formats import Format, choose_format, parser_for, tags_in
from chaski.text.parsers.pieces import Content, FoundCall, Lead, Parser, Piece, Thought

__all__ = [
    "Content",
    "Format",
    "FoundCall",
    "Lead",
    "Parser",
    "Piece",
    "Thought",
    "choose_format",
    "parser_for",
    "tags_in",
]
