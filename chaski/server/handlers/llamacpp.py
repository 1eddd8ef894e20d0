"""The routes of llama.cpp's server that answer: completions in its own form, infill, and vectors.

Those with OpenAI's forms are answered by OpenAI's handlers. None of them needs the name of a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from chaski.runner.loading.model_info import ModelInfo
from chaski.server.answering.events import Finish, ServiceEvents
from chaski.server.answering.requests import ChatRequest, GenerateRequest, ModelRequest
from chaski.server.answering.several import merged, repeated
from chaski.server.dialects import llamacpp, openai
from chaski.server.fields.reader import Fields
from chaski.server.handlers import openai as openai_handlers
from chaski.server.handlers.engines import model_of
from chaski.server.http.api import sse
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream

__all__ = ["chat", "completion", "count_tokens", "embedding", "infill", "load", "unload"]


async def completion(http: HTTPRequest) -> Reply:
    """Continue prompts as they are, in the form of llama.cpp's server."""
    request = await http.read(llamacpp.read_completion, http.body, await model_of(http, _writes))
    asked = [
        each
        for prompt in request.prompts
        for each in repeated(await _prompted(http, request.asked, prompt), request.count)
    ]
    return await _answered(http, request, asked)


async def infill(http: HTTPRequest) -> Reply:
    """Write the text that fills the gap between two others."""
    request = await http.read(llamacpp.read_infill, http.body, await model_of(http, _writes))
    return await _answered(http, request, [request.asked])


async def embedding(http: HTTPRequest) -> Reply:
    """Return the vectors of texts or of lists of tokens, in the form of llama.cpp's server."""
    request, norm = await http.read(llamacpp.read_embedding, http.body, await model_of(http, _embeds))
    found = await http.services.vectors.embed(request, http.client)
    return llamacpp.embedding_list(found.rows, norm)


async def chat(http: HTTPRequest) -> Reply:
    """Answer a conversation, as `/v1/chat/completions` does."""
    return await openai_handlers.chat(await _named(http))


async def count_tokens(http: HTTPRequest) -> Reply:
    """Count the tokens of the prompt that the model's template makes of a conversation."""
    named = await _named(http)
    request: ChatRequest = await http.read(openai.read_chat, named.body)
    http.ignored.update(request.ignored)
    count = await http.services.tokens.count(request, http.client)
    return {"object": "response.input_tokens", "input_tokens": count}


async def load(http: HTTPRequest) -> Reply:
    """Load a model."""
    await http.services.chat.load(ModelRequest(model=Fields(http.body).text("model")), http.client)
    return {"success": True}


async def unload(http: HTTPRequest) -> Reply:
    """Unload a model as soon as no request uses it."""
    await http.services.chat.unload(Fields(http.body).text("model"))
    return {"success": True}


async def _named(http: HTTPRequest) -> HTTPRequest:
    """Return the request with the name of a model."""
    return replace(http, body={**http.body, "model": await model_of(http, _writes)})


def _writes(info: ModelInfo) -> bool:
    return info.makes_text


def _embeds(info: ModelInfo) -> bool:
    return info.is_embedding


async def _prompted(http: HTTPRequest, asked: GenerateRequest, prompt: llamacpp.Prompt) -> GenerateRequest:
    """Return the request for a prompt. Texts next to tokens become tokens; only the first one gets BOS."""
    if not prompt.parts:
        return replace(asked, prompt=prompt.text, images=prompt.images)
    token_ids: list[int] = []
    for place, part in enumerate(prompt.parts):
        if isinstance(part, str):
            found = await http.services.tokens.tokenize(asked, part, http.client, add_special=place == 0)
            token_ids += found.token_ids
        else:
            token_ids.append(part)
    return replace(asked, token_ids=token_ids, echoes=True)


async def _answered(
    http: HTTPRequest, request: llamacpp.CompletionRequest, asked: Sequence[GenerateRequest]
) -> Reply:
    _, info = await asyncio.to_thread(http.services.catalog.look_up, request.asked.model)
    options = {**info.defaults.options, **request.asked.options}
    replies = llamacpp.Completions(request, llamacpp.settings_of(options))
    answers = [http.services.chat.answer(each, http.client) for each in asked]
    if request.asked.stream:
        return _pieces(answers, replies)
    ends: dict[int, dict[str, Any]] = {}
    async with aclosing(merged(answers)) as events:
        async for index, event in events:
            if isinstance(event, Finish):
                ends[index] = replies.end(index, event)
            else:
                replies.piece(index, event)
    return ends[0] if len(ends) == 1 else [ends[index] for index in sorted(ends)]


async def _pieces(answers: list[ServiceEvents], replies: llamacpp.Completions) -> Stream:
    async with aclosing(merged(answers)) as events:
        async for index, event in events:
            if isinstance(event, Finish):
                yield sse(replies.end(index, event))
            elif (piece := replies.piece(index, event)) is not None:
                yield sse(piece)
