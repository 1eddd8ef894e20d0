"""The interface of a tokenization algorithm: plain text to ids, and one token to its bytes."""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """One algorithm over one vocabulary."""

    @property
    def prefix_space(self) -> bool:
        """True if `encode` puts a space in front of every text, which decoding then removes."""

    def prepare(self) -> None:
        """Begin to build what `encode` needs, if that can be done alongside other work: here it cannot.

        May raise `TokenizerError`, as `encode` will.
        """
        return

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Token ids of each text. The first call builds the tables and may raise `TokenizerError`.

        continues: the texts continue others, so they are tokenized without `prefix_space`.
        """

    def finds(self, user_defined: str) -> bool:
        """Return whether `encode` finds this user-defined token; if not, `Tokenizer` splits it off."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that a token stands for, of any type but control and unknown."""
