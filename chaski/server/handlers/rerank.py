"""Routes that rank documents by how well they answer a query."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from chaski.server.dialects.rerank import read_rerank, read_texts, results, text_results
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import HTTPRequest, Reply

__all__ = ["cohere", "native", "openai", "plain"]


async def native(http: HTTPRequest) -> Reply:
    """Rank documents by how well they answer a query."""
    request = await http.read(read_rerank, http.body)
    found = await http.services.vectors.rerank(request, http.client)
    return {
        "model": request.model,
        "results": results(request, found.rows.tolist()),
        "total_duration": int(found.total_seconds * 1e9),
        "load_duration": int(found.load_seconds * 1e9),
        "prompt_eval_count": found.num_tokens,
    }


async def openai(http: HTTPRequest) -> Reply:
    """Rank documents, with a reply in the form of OpenAI's lists."""
    request = await http.read(read_rerank, http.body)
    found = await http.services.vectors.rerank(request, http.client)
    return {
        "object": "list",
        "model": request.model,
        "results": results(request, found.rows.tolist()),
        "usage": {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens},
    }


async def plain(http: HTTPRequest) -> Reply:
    """Rank documents as `/v1/rerank` does, or `texts` as Hugging Face's embedding server does."""
    if Fields(http.body).has("texts"):
        request = await http.read(read_texts, http.body)
        found = await http.services.vectors.rerank(request, http.client)
        return text_results(request, found.rows.tolist())
    return await openai(http)


async def cohere(http: HTTPRequest) -> Reply:
    """Rank documents as `/v1/rerank` does, with the fields that Cohere's clients expect."""
    reply = await openai(http)
    assert isinstance(reply, Mapping)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return {"id": str(uuid4()), **reply, "meta": meta}
