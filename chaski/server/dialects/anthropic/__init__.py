"""Anthropic's API as pure functions, which convert bodies to requests and events to blocks."""

from chaski.server.dialects.anthropic.replies import Blocks, message_whole
from chaski.server.dialects.anthropic.requests import read_count, read_messages
from chaski.server.dialects.anthropic.threads import is_kept, kept_thread, with_thread

__all__ = [
    "Blocks",
    "is_kept",
    "kept_thread",
    "message_whole",
    "read_count",
    "read_messages",
    "with_thread",
]
