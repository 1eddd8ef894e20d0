"""Limits of the prompts of a request with several answers."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import MAX_BODY, num_characters

__all__ = ["MAX_PROMPTS", "require_sendable"]

MAX_PROMPTS = 256
"""Largest number of prompts of a request."""


def require_sendable(fields: Fields, num_answers: int, num_prompts: int = 1) -> None:
    """Raise OptionError if the calls for all answers together are larger than a body may be.

    Each answer needs its own call, which repeats the prompt and the other fields.
    """
    if num_answers * num_prompts <= 1:
        return
    prompts = num_characters(fields.data.get("prompt"))
    others = num_characters(fields.data) - prompts
    size = num_answers * (prompts + max(1, num_prompts) * others)
    if size > MAX_BODY:
        raise OptionError(
            f"the prompts of all answers have {size} characters together; at most {MAX_BODY} are allowed; "
            "ask for fewer answers at once, or shorten the prompt"
        )
