"""Hugging Face tokenizers → `tokenizer.*` keys. Reads their files; cuts no text."""

from __future__ import annotations

from chaski.convert.tokenizer.metadata import tokenizer_metadata

__all__ = ["tokenizer_metadata"]
