"""Conversion of Hugging Face tokenizer files to `tokenizer.*` keys. This package does not tokenize text."""

from __future__ import annotations

from chaski.convert.tokenizer.metadata import tokenizer_metadata

__all__ = ["tokenizer_metadata"]
