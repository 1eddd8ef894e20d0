"""The control token that ends an answer by the chat template, where the file names another one or none.

Converters take the end of text from the tokenizer's settings, which is often not the end of a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaski.chat.formats import ChatFormat
    from chaski.chat.tokenizing import TextTokenizer

__all__ = ["turn_ends"]


def turn_ends(chat_format: ChatFormat, tokenizer: TextTokenizer) -> frozenset[int]:
    """Return the control token that the template writes right after an answer; empty if it writes none.

    It may also be the one that begins the next turn.
    """
    from chaski.text.parsers.formats import may_end

    text = chat_format.end_of_answer().lstrip()
    first, plain = (
        tokenizer.encode(text, add_special=False, parse_special=parses)[:1] for parses in (True, False)
    )
    # Only control tokens are not found in plain text.
    is_end = first != plain and may_end(chat_format.parser_name, tokenizer.token(first[0]))
    return frozenset(first if is_end else ())
