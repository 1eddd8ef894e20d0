"""How each API says things. Pure functions: JSON to typed requests, typed events to JSON."""

from __future__ import annotations

from chaski.server.dialects.dialect import ANTHROPIC, OLLAMA, OPENAI, Dialect

__all__ = ["ANTHROPIC", "OLLAMA", "OPENAI", "Dialect", "dialect_of"]

# Routes of llama.cpp's server, vLLM and Cohere, whose errors are like OpenAI's.
_OTHERS = frozenset(
    (
        *("/rerank", "/v2/rerank", "/tokenize", "/detokenize", "/apply-template"),
        *("/infill", "/props", "/slots"),
    )
)


def dialect_of(path: str) -> Dialect:
    """The dialect that an address belongs to."""
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OPENAI if path.startswith("/v1/") or path in _OTHERS else OLLAMA
