"""Tokenizers built from GGUF metadata, which convert text to token ids, and token ids to bytes and text.

`load_tokenizer` is cheap. The first `encode` builds the encoder itself (merge tables, tries); `prepare`
starts this earlier.
"""

from __future__ import annotations

from chaski.text.tokenizer.loader import check_tokenizer, file_tokenizer, has_tokenizer, load_tokenizer
from chaski.text.tokenizer.stream import TokenStream
from chaski.text.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenStream", "Tokenizer", "check_tokenizer", "file_tokenizer", "has_tokenizer", "load_tokenizer"]
