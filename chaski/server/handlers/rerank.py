"""How well documents answer a query, by models that were made for it."""

from __future__ import annotations

from chaski.server.dialects.rerank import read_rerank, results
from chaski.server.endpoint import Ask, Reply

__all__ = ["native", "openai"]


async def native(ask: Ask) -> Reply:
    """Sort documents by how well they answer a query."""
    wish = read_rerank(ask.body)
    found = await ask.services.answering.rerank(wish, ask.client)
    return {
        "model": wish.model,
        "results": results(wish, found.rows.tolist()),
        "total_duration": int(found.total_seconds * 1e9),
        "load_duration": int(found.load_seconds * 1e9),
        "prompt_eval_count": found.num_tokens,
    }


async def openai(ask: Ask) -> Reply:
    """The same, in the form of OpenAI's lists."""
    wish = read_rerank(ask.body)
    found = await ask.services.answering.rerank(wish, ask.client)
    return {
        "object": "list",
        "model": wish.model,
        "results": results(wish, found.rows.tolist()),
        "usage": {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens},
    }
