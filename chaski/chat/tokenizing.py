"""What prompts need of a tokenizer."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TextTokenizer"]


class TextTokenizer(Protocol):
    """What is needed of a tokenizer; see `chaski.text.tokenizer.Tokenizer`."""

    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def token(self, token_id: int) -> str: ...
