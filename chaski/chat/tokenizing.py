"""The part of a tokenizer that prompts use."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TextTokenizer"]


class TextTokenizer(Protocol):
    """The tokenizer that encodes prompts; `chaski.text.tokenizer.Tokenizer` is one."""

    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def token(self, token_id: int) -> str: ...
