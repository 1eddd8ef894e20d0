"""Parsers of answers, which split streamed text into content, thinking and tool calls.

A parser is a machine with `feed(text)` and `flush()`. Its joined output does not depend on how the text was
cut. Text that only looks like a tool call becomes content; nothing is lost. The parsers themselves are
in `chaski.text.parsers.formats`, which is imported when a conversation is read.
"""

from __future__ import annotations

from chaski.text.parsers.pieces import Content, FoundCall, Lead, Parser, Piece, Thought

__all__ = ["Content", "FoundCall", "Lead", "Parser", "Piece", "Thought"]
