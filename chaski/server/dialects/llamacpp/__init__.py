"""Requests and replies that only llama.cpp's server defines, as pure functions."""

from chaski.server.dialects.llamacpp.replies import Completions, embedding_list, settings_of
from chaski.server.dialects.llamacpp.requests import (
    CompletionRequest,
    Prompt,
    read_completion,
    read_embedding,
    read_infill,
)

__all__ = [
    "CompletionRequest",
    "Completions",
    "Prompt",
    "embedding_list",
    "read_completion",
    "read_embedding",
    "read_infill",
    "settings_of",
]
