"""OpenAI's API, as pure functions: its requests to wishes, events to its objects."""

from chaski.server.dialects.openai.replies import Chunks, chat_whole, completion_whole, embeddings
from chaski.server.dialects.openai.requests import (
    MAX_ANSWERS,
    CompletionWish,
    includes_usage,
    read_chat,
    read_completion,
    read_count,
    read_embeddings,
)

__all__ = [
    "MAX_ANSWERS",
    "Chunks",
    "CompletionWish",
    "chat_whole",
    "completion_whole",
    "embeddings",
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
]
