"""Prompts of a query and documents for models that rank, and the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaski.errors import ContextLengthError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from chaski.chat.tokenizing import TextTokenizer

__all__ = ["RANKING_TEMPLATE", "Ranked", "checked_count", "checked_template", "pair_ids", "ranked"]

RANKING_TEMPLATE = "tokenizer.chat_template.rerank"
"""The key of a file that says how its model is asked, with {query} and {document} where they belong."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document among those that were ranked.

    index     place among the documents, counted from 0
    score     relevance to the query, from 0 to 1
    document  text of the document
    """

    index: int
    score: float
    document: str


def ranked(documents: Sequence[str], scores: Sequence[float]) -> list[Ranked]:
    """Documents with their scores, the best one first; those that are equally good in their order."""
    best = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [Ranked(index, scores[index], documents[index]) for index in best]


def checked_count(top_n: int | None) -> int | None:
    """Return the number of documents to keep, None for all. Raises OptionError."""
    if top_n is not None and (not isinstance(top_n, int) or isinstance(top_n, bool) or top_n < 0):
        raise OptionError(f"option top_n is {top_n!r:.40}; it must be a whole number from 0 on, or None")
    return top_n


def checked_template(template: str | None) -> str:
    """The file's template for pairs. Raises UnsupportedError where it has none that can be used."""
    if template is None or "{document}" not in template:
        raise UnsupportedError(
            f"the file of the model does not say how it is asked: {RANKING_TEMPLATE} is missing, or has no "
            "{document}; convert it anew from its checkpoint"
        )
    return template


def pair_ids(
    template: str, query: str, document: str, tokenizer: TextTokenizer, context: int, truncate: bool
) -> list[int]:
    """The tokens of a query and a document, with the one that begins every text, written or not.

    `truncate` leaves out the last tokens of a document that does not fit.
    """
    opening = tokenizer.encode("")[:1]

    def first(text: str) -> list[int]:
        ids = tokenizer.encode(text, add_special=False)
        return ids if ids[:1] == opening else opening + ids

    head, _, tail = (part.replace("{query}", query) for part in template.partition("{document}"))
    ids = first(head + document + tail)
    if len(ids) <= context:
        return ids
    begin, end = first(head), tokenizer.encode(tail, add_special=False)
    room = context - len(begin) - len(end)
    if not truncate or room < 1:
        raise ContextLengthError(
            f"query and document have {len(ids)} tokens, but the context holds {context}; shorten them, load "
            "the model with a larger context or set truncate",
            len(ids),
            context,
        )
    return begin + tokenizer.encode(document, add_special=False)[:room] + end
