"""RWKV's tokenizer, `tokenizer.ggml.model` = `rwkv`: the longest token at each place, over bytes.

The file spells bytes as Python does in a literal: `\\n`, `\\xe9`.
"""

from __future__ import annotations

import re
from functools import cached_property

from chaski.errors import TokenizerError
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.spellings import Spellings
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary

__all__ = ["LongestMatch"]

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class LongestMatch(Codec):
    """Encodes text by the longest token that begins at each byte."""

    prefix_space = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text.

        The first call raises `TokenizerError` if a byte has no token.
        """
        return [self._ids(text.encode()) for text in texts]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are found before the text is spelled."""
        return False

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes that the token spells. The text of user-defined tokens is unchanged."""
        data = token.encode("utf-8", "surrogateescape")
        return data if kind == TokenType.USER_DEFINED or b"\\" not in data else _ESCAPE.sub(_byte, data)

    def _ids(self, data: bytes) -> list[int]:
        ids: list[int] = []
        position = 0
        while position < len(data):
            length, token_id = next(self._spellings.at(data, position))
            ids.append(token_id)
            position += length
        return ids

    @cached_property
    def _spellings(self) -> Spellings[bytes]:
        tokens = self._vocabulary.tokens
        normal = self._vocabulary.ids_of_type(TokenType.NORMAL)
        ids = {self.token_bytes(tokens[i], TokenType.NORMAL): i for i in normal}
        missing = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
        if missing is not None:
            raise TokenizerError(f"{PREFIX}tokens has no token for the byte {missing:#04x}")
        return Spellings(ids)


def _byte(escape: re.Match[bytes]) -> bytes:
    if escape[1] is not None:
        return bytes([int(escape[1], 16)])
    return _LETTERS.get(escape[2], escape[2])
