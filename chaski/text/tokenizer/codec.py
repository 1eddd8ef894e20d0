"""What a tokenization algorithm offers to `Tokenizer`: plain text to ids, and one token to its bytes."""

from __future__ import annotations

from typing import Protocol

from chaski.text.tokenizer.vocabulary import TokenType


class Codec(Protocol):
    """One algorithm over one vocabulary."""

    @property
    def special_types(self) -> tuple[TokenType, ...]:
        """Types of the tokens that the algorithm does not find in text; `Tokenizer` splits them off."""

    @property
    def prefix_space(self) -> bool:
        """Whether `encode` puts a space in front of every text, which decoding then takes away."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text. The first call builds the tables and may raise `TokenizerError`."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that a token of any type outside `special_types` stands for."""
