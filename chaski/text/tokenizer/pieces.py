"""SentencePiece's spelling of tokens: U+2581 for a space, `<0x41>` for a byte."""

from __future__ import annotations

import re

from chaski.errors import TokenizerError
from chaski.text.tokenizer.vocabulary import TokenType, Vocabulary

SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_bytes(token: str, kind: int) -> bytes:
    """Return the byte that a byte token names, else the text of the piece with spaces for U+2581."""
    if kind == TokenType.BYTE:
        return bytes([byte_value(token)])
    return token.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def byte_value(token: str) -> int:
    """Return the byte that a token names. Raises `TokenizerError` for another form."""
    match = _BYTE_TOKEN.fullmatch(token)
    if match is None:
        raise TokenizerError(
            f"tokenizer.ggml.tokens: {token!r} is typed as a byte, but is not of the form <0x41>"
        )
    return int(match[1], 16)


def find_unknown(vocabulary: Vocabulary) -> int:
    """Return the token for characters without a token. Many files type it as control."""
    if vocabulary.unknown_id is not None:
        return vocabulary.unknown_id
    candidates = vocabulary.ids_of_type(TokenType.UNKNOWN) or vocabulary.ids_of_type(TokenType.CONTROL)
    if not candidates:
        raise TokenizerError(
            "tokenizer.ggml.unknown_token_id is missing, and no token is typed unknown or control"
        )
    return candidates[0]


def find_bytes(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of the 256 byte tokens, by byte; an empty list for a vocabulary without them."""
    ids = {byte_value(vocabulary.tokens[i]): i for i in vocabulary.ids_of_type(TokenType.BYTE)}
    if ids and len(ids) != 256:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has tokens for {len(ids)} bytes, expected all 256 or none"
        )
    return [ids[byte] for byte in sorted(ids)]
