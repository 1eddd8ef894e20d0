"""SentencePiece's spelling of tokens: U+2581 for a space, `<0x41>` for a byte."""

from __future__ import annotations

import re

from chaski.errors import TokenizerError
from chaski.text.tokenizer.vocabulary import TokenType

SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_bytes(token: str, kind: int) -> bytes:
    """The byte that a byte token names; else the text of the piece, with spaces for U+2581."""
    if kind == TokenType.BYTE:
        return bytes([byte_value(token)])
    return token.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def byte_value(token: str) -> int:
    """The byte that a token names. Raises `TokenizerError` for one of another form."""
    match = _BYTE_TOKEN.fullmatch(token)
    if match is None:
        raise TokenizerError(
            f"tokenizer.ggml.tokens: {token!r} is typed as a byte, but is not of the form <0x41>"
        )
    return int(match[1], 16)
