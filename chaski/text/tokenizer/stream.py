"""Token ids to text, one id at a time; incomplete characters are held back.

ids --> bytes of each token --> incremental UTF-8 --> text
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that a stream uses."""

    @property
    def prefix_space(self) -> bool:
        """Return whether encoding puts a space before text."""

    def token_bytes(self, token_id: int, special: bool = False) -> bytes:
        """Return the bytes of one token."""

    def is_special(self, token_id: int) -> bool:
        """Return whether the token was split off as a special token."""


class TokenStream:
    """Feeds bytes of tokens through an incremental UTF-8 decoder.

    Nothing is lost: a character that is spread over tokens appears with its last byte, and bytes that are not
    UTF-8 appear as U+FFFD, at the latest from `flush`. All texts joined equal the joined bytes decoded at
    once.
    """

    def __init__(self, tokenizer: TokenBytes, *, at_start: bool = False, special: bool = False) -> None:
        """Begin a stream.

        at_start: the first token begins a text, so the space that `encode` put before it is dropped
        special: control tokens appear as text, too
        """
        self._tokenizer = tokenizer
        self._special = special
        self._at_start = at_start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes, often empty. Raises `TokenizerError` for a bad id."""
        data = self._tokenizer.token_bytes(token_id, self._special)
        if self._tokenizer.is_special(token_id):
            self._at_start = True
        elif self._at_start:
            self._at_start = False
            data = data.removeprefix(b" ") if self._tokenizer.prefix_space else data
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text and return the rest; an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
