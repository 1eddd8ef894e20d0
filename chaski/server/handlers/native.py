"""Ollama's API: generate, chat, embeddings, tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from chaski.errors import ModelNotFoundError, OptionError
from chaski.server.answering.events import ServiceEvent, ServiceEvents, whole
from chaski.server.answering.requests import EmbedRequest, ModelRequest
from chaski.server.dialects import ollama
from chaski.server.fields.reader import Fields
from chaski.server.http.api import ndjson
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream

__all__ = ["chat", "detokenize", "embed", "embeddings", "generate", "lines", "tokenize"]


async def generate(http: HTTPRequest) -> Reply:
    """Answer or continue a prompt; without one, load or unload the model."""
    request = await http.read(ollama.read_generate, http.body)
    if not request.prompt and not request.suffix and not request.images:
        return await _load_only(http, request, is_chat=False)
    events = http.services.chat.answer(request, http.client)
    if request.stream:
        return lines(events, request.model, ollama.generate_fields)
    return ollama.generate_whole(request.model, await whole(events))


async def chat(http: HTTPRequest) -> Reply:
    """Answer a conversation; without messages, load or unload the model."""
    request = await http.read(ollama.read_chat, http.body)
    if not request.messages:
        return await _load_only(http, request, is_chat=True)
    events = http.services.chat.answer(request, http.client)
    answer_id = ollama.read_answer_id(http.body)
    if answer_id is not None:
        http.services.answers.begin(http.owner, answer_id, request.model, events)
        events = http.services.answers.follow(http.owner, answer_id)
    if request.stream:
        return lines(events, request.model, ollama.chat_fields)
    return ollama.chat_whole(request.model, await whole(events))


async def embed(http: HTTPRequest) -> Reply:
    """Return the vectors of texts."""
    request = await http.read(ollama.read_embed, http.body)
    try:
        found = await http.services.vectors.embed(request, http.client)
    except ModelNotFoundError:
        raise ModelNotFoundError(f'model "{request.model:.200}" not found, try pulling it first') from None
    return {
        "model": request.model,
        "embeddings": found.rows,
        "total_duration": int(found.total_seconds * 1e9),
        "load_duration": int(found.load_seconds * 1e9),
        "prompt_eval_count": found.num_tokens,
    }


async def embeddings(http: HTTPRequest) -> Reply:
    """Return the vector of one text, without normalization: the older form of `/api/embed`."""
    fields = Fields(http.body)
    prompt = fields.text("prompt")
    request = EmbedRequest(
        model=fields.text("model", "name"),
        inputs=[prompt] if prompt else [],
        options=fields.mapping("options"),
        keep_alive=ollama.read_keep_alive(fields),
        normalize=False,
    )
    found = await http.services.vectors.embed(request, http.client)
    return {"embedding": found.rows[0] if prompt else []}


async def tokenize(http: HTTPRequest) -> Reply:
    """Return the tokens of a text."""
    fields = Fields(http.body)
    request = ModelRequest(model=fields.text("model", "name"), keep_alive=ollama.read_keep_alive(fields))
    found = await http.services.tokens.tokenize(
        request, fields.text("content", "text", "prompt"), http.client
    )
    return {"model": request.model, "tokens": found.token_ids}


async def detokenize(http: HTTPRequest) -> Reply:
    """Return the text of tokens."""
    fields = Fields(http.body)
    request = ModelRequest(model=fields.text("model", "name"), keep_alive=ollama.read_keep_alive(fields))
    tokens = fields.items("tokens")
    if not all(type(token) is int for token in tokens):
        raise OptionError("tokens must be a list of integers")
    text = await http.services.tokens.detokenize(request, tokens, http.client)
    return {"model": request.model, "content": text}


async def _load_only(http: HTTPRequest, request: ModelRequest, is_chat: bool) -> Reply:
    chat = http.services.chat
    if request.keep_alive == 0:
        await chat.unload(request.model)
        return ollama.empty_fields(request.model, "unload", is_chat)
    await chat.load(request, http.client)
    return ollama.empty_fields(request.model, "load", is_chat)


async def lines(
    events: ServiceEvents,
    model: str,
    fields: Callable[[str, ServiceEvent], Mapping[str, Any]],
) -> Stream:
    """Yield the events of an answer as lines of a stream."""
    async with aclosing(events):
        async for event in events:
            yield ndjson(fields(model, event))
