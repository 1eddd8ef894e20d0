"""Prompts of a query and documents for models that rank, and the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from chaski.errors import ContextLengthError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from chaski.chat.tokenizing import TextTokenizer
    from chaski.formats.gguf import GGUFFile

__all__ = [
    "RANKING_TEMPLATE",
    "Ranked",
    "Separators",
    "checked_count",
    "checked_template",
    "pair_ids",
    "ranked",
]

RANKING_TEMPLATE = "tokenizer.chat_template.rerank"
"""The metadata key of the prompt for ranking, which contains {query} and {document}."""


class Ranked(Struct, frozen=True):
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


def checked_template(template: str | None, is_causal: bool) -> str | None:
    """The file's template for pairs; None for an encoder without one, which has tokens between texts.

    Raises UnsupportedError for a decoder without one that can be used.
    """
    if template is None and not is_causal:
        return None
    if template is None or "{document}" not in template:
        raise UnsupportedError(
            f"the file of the model does not say how it is asked: {RANKING_TEMPLATE} is missing, or has no "
            "{document}; convert it again from its checkpoint"
        )
    return template


class Separators(Struct, frozen=True):
    """The tokens before, between and after the two texts that an encoder compares."""

    first: list[int]
    between: list[int]
    last: list[int]

    @classmethod
    def of(cls, file: GGUFFile, tokenizer: TextTokenizer) -> Separators:
        """Those of a file: as around a single text, and between texts those after one, and one more if the
        file asks for it."""
        ends = tokenizer.encode("")
        first = ends[:1] if ends[:1] == [tokenizer.bos_id] else []
        last = ends[len(first) :]
        separator = file.get("tokenizer.ggml.seperator_token_id", int, None)
        adds = separator is not None and file.get("tokenizer.ggml.add_sep_token", bool, False)
        return cls(first, last + ([separator] if adds and separator is not None else []), last)

    def ids(
        self, query: str, document: str, tokenizer: TextTokenizer, context: int, truncate: bool
    ) -> list[int]:
        """The tokens of a query and a document. Neither can write the tokens that part them.

        `truncate` leaves out the last tokens of a document that does not fit.
        """
        asked, told = (
            tokenizer.encode(text, add_special=False, parse_special=False) for text in (query, document)
        )
        return _fitted(self.first + asked + self.between, told, self.last, context, truncate)

    def second_text(self, ids: Sequence[int]) -> int | None:
        """The place where the second of two texts begins, among their ids; None where nothing parts them."""
        found = list(ids[len(self.first) :])
        if not self.between or self.between[0] not in found:
            return None
        return len(self.first) + found.index(self.between[0]) + len(self.between)


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
    return _fitted(begin, tokenizer.encode(document, add_special=False), end, context, truncate)


def _fitted(begin: list[int], document: list[int], end: list[int], context: int, truncate: bool) -> list[int]:
    """All ids, with as much of the document as there is room for."""
    room = context - len(begin) - len(end)
    length = len(begin) + len(document) + len(end)
    if length > context and (not truncate or room < 1):
        raise ContextLengthError(
            f"query and document have {length} tokens, but the context holds {context}", length, context
        )
    return begin + document[:room] + end
