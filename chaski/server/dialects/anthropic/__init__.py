"""Anthropic's API, as pure functions: its requests to wishes, events to its blocks."""

from chaski.server.dialects.anthropic.replies import Blocks, message_whole
from chaski.server.dialects.anthropic.requests import read_count, read_messages

__all__ = ["Blocks", "message_whole", "read_count", "read_messages"]
