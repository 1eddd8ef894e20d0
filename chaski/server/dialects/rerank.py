"""Reranking in the form of Jina's and Cohere's APIs, since the APIs of Ollama and OpenAI do not define it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.server.answering.requests import RerankRequest
from chaski.server.dialects.ollama import read_keep_alive
from chaski.server.fields.reader import Fields

__all__ = ["Pairs", "read_pairs", "read_rerank", "read_texts", "results", "text_results"]


class Pairs(Struct, frozen=True):
    """A request of vLLM's /score: pairs of a query and a text.

    common: the fields of the requests that compute the scores
    """

    queries: Sequence[str]
    texts: Sequence[str]
    common: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.common["model"])


def read_rerank(body: Mapping[str, Any]) -> RerankRequest:
    """Read a request with `documents`. Raises OptionError."""
    fields = Fields(body)
    documents = _documents(fields)
    if not fields.has("query"):
        raise OptionError("query is required")
    if not documents:
        raise OptionError("documents is required")
    top_n = fields.integer("top_n", len(documents))
    if top_n < 1:
        raise OptionError(f"top_n is {top_n}; it must be at least 1")
    return RerankRequest(
        model=fields.text("model"),
        query=fields.text("query"),
        documents=documents,
        options=fields.mapping("options"),
        keep_alive=read_keep_alive(fields),
        truncate=fields.flag("truncate", True),
        top_n=top_n,
        returns_documents=fields.flag("return_documents", False),
    )


def read_texts(body: Mapping[str, Any]) -> RerankRequest:
    """Read a request with `texts`. Raises OptionError."""
    fields = Fields(body)
    if fields.flag("raw_scores", False):
        raise OptionError("raw_scores is not supported; leave it out")
    return read_rerank(
        {
            "model": fields.text("model"),
            "query": fields.data.get("query"),
            "documents": fields.texts("texts"),
            "return_documents": fields.flag("return_text", False),
            "truncate": fields.flag("truncate", True),
            "keep_alive": fields.data.get("keep_alive"),
        }
    )


def read_pairs(body: Mapping[str, Any]) -> Pairs:
    """Read a request of /score: one query for all texts, or one for each. Raises OptionError."""
    fields = Fields(body)
    queries = fields.texts("text_1" if fields.has("text_1") else "queries")
    texts = fields.texts("text_2" if fields.has("text_2") else "documents")
    if not queries or not texts:
        raise OptionError("text_1 and text_2 are required")
    if len(queries) not in (1, len(texts)):
        raise OptionError(
            f"text_1 has {len(queries)} texts and text_2 has {len(texts)}; text_1 must have 1 or as many"
        )
    return Pairs(
        queries * len(texts) if len(queries) == 1 else queries,
        texts,
        {
            "model": fields.text("model"),
            "keep_alive": read_keep_alive(fields),
            "truncate": fields.flag("truncate", True),
        },
    )


def text_results(request: RerankRequest, scores: Sequence[float]) -> list[dict[str, Any]]:
    """Return the answer to a request with `texts`."""
    return [
        {"index": found["index"], "score": found["relevance_score"]}
        | ({"text": found["document"]["text"]} if request.returns_documents else {})
        for found in results(request, scores)
    ]


def results(request: RerankRequest, scores: Sequence[float]) -> list[dict[str, Any]]:
    """Return the `top_n` best documents, the best one first. Equally good documents keep their order."""
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    return [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": request.documents[index]}} if request.returns_documents else {})
        for index in best
    ]


def _documents(fields: Fields) -> list[str]:
    """Read documents, which are texts or objects with a text."""
    items = enumerate(fields.items("documents"))
    return [
        item if isinstance(item, str) else Fields(item, f"documents[{index}]").text("text")
        for index, item in items
    ]
