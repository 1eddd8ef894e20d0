"""The option `receipt` of a request: whether its answer has a receipt, and what it contains."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, ValidationError, convert

from chaski.errors import OptionError

__all__ = ["MAX_TOP", "ReceiptWish"]

MAX_TOP = 20
"""The most logits of a step that a receipt covers."""


class ReceiptWish(Struct, frozen=True, forbid_unknown_fields=True):
    """What a receipt contains.

    prompt      "tokens" includes the tokens of the prompt, "digest" only their SHA-256
    top_logits  number of largest logits of each step that the chain of hashes covers
    """

    prompt: Literal["tokens", "digest"] = "tokens"
    top_logits: int = 0

    @classmethod
    def read(cls, value: Any) -> ReceiptWish | None:
        """Read the option: True, False, None or an object of the fields. Raises OptionError."""
        if value is None or isinstance(value, bool | cls):
            return (cls() if value else None) if isinstance(value, bool) else value
        try:
            wish = convert(value, cls)
        except ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            raise OptionError(f"option receipt is {value!r:.80}; {_WANTED}: {reason}") from None
        if not 0 <= wish.top_logits <= MAX_TOP:
            raise OptionError(f"option receipt has top_logits of {wish.top_logits}; {_WANTED}")
        return wish


_WANTED = (
    f'it must be true, false, or an object with prompt ("tokens" or "digest") and top_logits (0 to {MAX_TOP})'
)
