"""Routes that only vLLM's server has: its version, its load, and scores of pairs of texts."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import numpy as np

from chaski.server.answering.requests import EmbedRequest, RerankRequest
from chaski.server.dialects.rerank import Pairs, read_pairs
from chaski.server.http.endpoint import HTTPRequest, Reply

__all__ = ["load", "ping", "score", "version"]


async def version(http: HTTPRequest) -> Reply:
    """Return chaski's version."""
    from chaski import __version__

    return {"version": __version__}


async def ping(http: HTTPRequest) -> Reply:
    """Report that the server is running."""
    return {}


async def load(http: HTTPRequest) -> Reply:
    """Return the number of requests that run or wait."""
    models = http.services.models
    return {"server_load": models.waiting + sum(each.users for each in models.loaded)}


async def score(http: HTTPRequest) -> Reply:
    """Score pairs of texts: their relevance by a model that ranks, or the cosine of their vectors."""
    pairs = await http.read(read_pairs, http.body)
    _, info = await asyncio.to_thread(http.services.catalog.look_up, pairs.model)
    score = _relevances if info.is_ranking or not info.is_embedding else _cosines
    scores, num_tokens = await score(http, pairs)
    return {
        "id": f"score-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": pairs.model,
        "data": [{"index": n, "object": "score", "score": each} for n, each in enumerate(scores)],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


async def _relevances(http: HTTPRequest, pairs: Pairs) -> tuple[list[float], int]:
    """Return the relevance of each text to its query, and the number of tokens."""
    scores, num_tokens = [0.0] * len(pairs.texts), 0
    for query in dict.fromkeys(pairs.queries):
        places = [place for place, each in enumerate(pairs.queries) if each == query]
        texts = [pairs.texts[place] for place in places]
        request = RerankRequest(query=query, documents=texts, top_n=len(texts), **pairs.common)
        found = await http.services.vectors.rerank(request, http.client)
        num_tokens += found.num_tokens
        for place, value in zip(places, found.rows.tolist(), strict=True):
            scores[place] = value
    return scores, num_tokens


async def _cosines(http: HTTPRequest, pairs: Pairs) -> tuple[list[float], int]:
    """Return the cosine of the vectors of each pair, and the number of tokens."""
    places = {text: place for place, text in enumerate(dict.fromkeys((*pairs.queries, *pairs.texts)))}
    found = await http.services.vectors.embed(EmbedRequest(inputs=list(places), **pairs.common), http.client)
    left, right = (found.rows[[places[text] for text in side]] for side in (pairs.queries, pairs.texts))
    return np.sum(left * right, axis=-1).tolist(), found.num_tokens
