"""Execution of sequences: batches, the prefix cache, and the stream from tokens to events.

This package works with models, caches and tokenizers. It contains nothing about HTTP or API dialects.
"""

from chaski.chat.events import Done, Event, Text

__all__ = ["Done", "Event", "Text"]
