"""OpenAI's API as pure functions, which convert bodies to requests and events to objects."""

from chaski.server.dialects.openai.replies import Chunks, chat_whole, completion_whole, embeddings
from chaski.server.dialects.openai.requests import (
    CompletionRequest,
    includes_usage,
    read_chat,
    read_completion,
    read_count,
    read_embeddings,
)

__all__ = [
    "Chunks",
    "CompletionRequest",
    "chat_whole",
    "completion_whole",
    "embeddings",
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
]
