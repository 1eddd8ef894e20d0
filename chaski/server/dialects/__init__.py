"""How each API says things. Pure functions: JSON to typed requests, typed events to JSON."""

from __future__ import annotations

from chaski.server.dialects.dialect import ANTHROPIC, OLLAMA, OPENAI, Dialect

__all__ = ["ANTHROPIC", "OLLAMA", "OPENAI", "Dialect", "dialect_of"]


def dialect_of(path: str) -> Dialect:
    """The dialect that an address belongs to."""
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OPENAI if path.startswith("/v1/") else OLLAMA
