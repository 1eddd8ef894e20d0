"""The native API's answers: generate, chat, embeddings, tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from chaski.errors import ModelNotFoundError, OptionError
from chaski.server.dialects import ollama
from chaski.server.events import Event, whole
from chaski.server.fields.reader import Fields
from chaski.server.http.dialect import ndjson
from chaski.server.http.endpoint import Ask, Reply, Stream
from chaski.server.wishes import EmbedWish, Wish

__all__ = ["chat", "detokenize", "embed", "embeddings", "generate", "tokenize"]


async def generate(ask: Ask) -> Reply:
    """Answer or continue a prompt; without one, load or unload the model."""
    wish = ollama.read_generate(ask.body)
    if not wish.prompt and not wish.suffix and not wish.images:
        return await _load_only(ask, wish, is_chat=False)
    events = ask.services.answering.generate(wish, ask.client)
    if wish.stream:
        return _lines(events, wish.model, ollama.generate_fields)
    return ollama.generate_whole(wish.model, await whole(events))


async def chat(ask: Ask) -> Reply:
    """Answer a conversation; without messages, load or unload the model."""
    wish = ollama.read_chat(ask.body)
    if not wish.messages:
        return await _load_only(ask, wish, is_chat=True)
    events = ask.services.answering.chat(wish, ask.client)
    if wish.stream:
        return _lines(events, wish.model, ollama.chat_fields)
    return ollama.chat_whole(wish.model, await whole(events))


async def embed(ask: Ask) -> Reply:
    """Vectors of texts."""
    wish = ollama.read_embed(ask.body)
    try:
        found = await ask.services.answering.embed(wish, ask.client)
    except ModelNotFoundError:
        raise ModelNotFoundError(f'model "{wish.model:.200}" not found, try pulling it first') from None
    return {
        "model": wish.model,
        "embeddings": found.rows.tolist(),
        "total_duration": int(found.total_seconds * 1e9),
        "load_duration": int(found.load_seconds * 1e9),
        "prompt_eval_count": found.num_tokens,
    }


async def embeddings(ask: Ask) -> Reply:
    """The older form: one text, and its vector as the model makes it."""
    fields = Fields(ask.body)
    prompt = fields.text("prompt")
    wish = EmbedWish(
        model=fields.text("model", "name"),
        inputs=[prompt] if prompt else [],
        options=fields.mapping("options"),
        keep_alive=ollama.read_keep_alive(fields),
        normalize=False,
    )
    found = await ask.services.answering.embed(wish, ask.client)
    return {"embedding": found.rows[0].tolist() if prompt else []}


async def tokenize(ask: Ask) -> Reply:
    """The tokens of a text."""
    fields = Fields(ask.body)
    wish = Wish(model=fields.text("model", "name"), keep_alive=ollama.read_keep_alive(fields))
    found = await ask.services.answering.tokenize(wish, fields.text("content", "text", "prompt"), ask.client)
    return {"model": wish.model, "tokens": found.token_ids}


async def detokenize(ask: Ask) -> Reply:
    """The text of tokens."""
    fields = Fields(ask.body)
    wish = Wish(model=fields.text("model", "name"), keep_alive=ollama.read_keep_alive(fields))
    tokens = fields.items("tokens")
    if not all(type(token) is int for token in tokens):
        raise OptionError("tokens must be a list of integers")
    text = await ask.services.answering.detokenize(wish, tokens, ask.client)
    return {"model": wish.model, "content": text}


async def _load_only(ask: Ask, wish: Wish, is_chat: bool) -> Reply:
    answering = ask.services.answering
    if wish.keep_alive == 0:
        await answering.unload(wish.model)
        return ollama.empty_fields(wish.model, "unload", is_chat)
    await answering.load(wish, ask.client)
    return ollama.empty_fields(wish.model, "load", is_chat)


async def _lines(
    events: AsyncGenerator[Event, None], model: str, fields: Callable[[str, Event], Mapping[str, Any]]
) -> Stream:
    async with aclosing(events):
        async for event in events:
            yield ndjson(fields(model, event))
