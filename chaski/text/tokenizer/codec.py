"""The interface of a tokenization algorithm: plain text to ids, and one token to its bytes."""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """One algorithm over one vocabulary."""

    @property
    def prefix_space(self) -> bool:
        """Return whether `encode` puts a space before every text, which decoding then removes."""

    def prepare(self) -> None:
        """Start building the tables of `encode` in parallel with other work. By default this does nothing.

        May raise `TokenizerError`, as `encode` would.
        """
        return

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text. The first call builds the tables and may raise `TokenizerError`.

        continues: the texts continue others, so they are tokenized without `prefix_space`
        """

    def finds(self, user_defined: str) -> bool:
        """Return whether `encode` finds this user-defined token; if not, `Tokenizer` splits it off."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes that a token stands for; it may have any type but control and unknown."""
