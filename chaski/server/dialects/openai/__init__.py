"""OpenAI's API, as pure functions: its requests to wishes, events to its objects."""

from chaski.server.dialects.openai.replies import Chunks, chat_whole, completion_whole, embeddings
from chaski.server.dialects.openai.requests import (
    includes_usage,
    read_chat,
    read_completion,
    read_count,
    read_embeddings,
)

__all__ = [
    "Chunks",
    "chat_whole",
    "completion_whole",
    "embeddings",
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
]
