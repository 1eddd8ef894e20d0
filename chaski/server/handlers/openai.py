"""OpenAI's API: chat completions, completions, embeddings, models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from msgspec.structs import replace

from chaski.server.answering.events import Delta, Finish, ServiceEvent, ServiceEvents, Whole, whole
from chaski.server.answering.requests import ChatRequest, GenerateRequest
from chaski.server.answering.scores import require_few_scores
from chaski.server.dialects import openai
from chaski.server.http.api import sse
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream
from chaski.server.models.adapter_table import ServedAdapter

__all__ = ["chat", "completions", "embeddings", "model", "models"]

_DONE = b"data: [DONE]\n\n"

W = TypeVar("W", ChatRequest, GenerateRequest)


async def chat(http: HTTPRequest) -> Reply:
    """Answer a conversation."""
    request, count = await http.read(openai.read_chat, http.body), openai.read_count(http.body)
    http.ignored.update(request.ignored)
    first, *others = _repeated(request, count)
    # All answers have the same prompt, so its scores are computed only once.
    requests = [first, *(replace(each, prompt_logprobs=None) for each in others)]
    answers = [http.services.chat.answer(each, http.client) for each in requests]
    names_tool = request.tool_choice not in ("auto", "none", "required")
    if request.stream:
        chunks = openai.Chunks(request.model, custom_tools=request.custom_tools, names_tool=names_tool)
        return _chunks(answers, chunks, openai.includes_usage(http.body))
    return openai.chat_whole(request.model, await _wholes(answers), request.custom_tools, names_tool)


async def completions(http: HTTPRequest) -> Reply:
    """Answer prompts of text or tokens, or return their log-probabilities."""
    request = await http.read(openai.read_completion, http.body)
    answers = [
        http.services.chat.answer(each, http.client)
        for prompt in request.prompts
        for each in _repeated(prompt, request.best_of)
    ]
    if request.prompts[0].stream:
        return _chunks(answers, openai.Chunks(request.model, request), openai.includes_usage(http.body))
    return openai.completion_whole(request, await _wholes(answers))


async def embeddings(http: HTTPRequest) -> Reply:
    """Return the vectors of texts or of lists of tokens."""
    request, in_base64 = await http.read(openai.read_embeddings, http.body)
    found = await http.services.vectors.embed(request, http.client)
    return openai.embeddings(request.model, found.rows, found.num_tokens, in_base64)


async def models(http: HTTPRequest) -> Reply:
    """List the models of the store and the loaded adapters. An adapter has its model as `parent`."""
    entries = await asyncio.to_thread(http.services.catalog.store.entries)
    data = [_model(entry.name.short, entry.modified, entry.name.namespace) for entry in entries]
    return {"object": "list", "data": [*data, *map(_adapter, http.services.adapters.all)]}


async def model(http: HTTPRequest) -> Reply:
    """Describe a model or an adapter."""
    label = http.request.path_params["model"]
    found = await asyncio.to_thread(http.services.catalog.find, label)
    if found.adapter is not None:
        return {**_adapter(found.adapter), "id": label}
    return _model(label, found.entry.modified, found.name.namespace)


def _model(name: str, created: float, owner: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _adapter(adapter: ServedAdapter) -> dict[str, object]:
    shown = _model(adapter.name, adapter.created, adapter.base.namespace)
    return {**shown, "parent": adapter.base.short, "root": adapter.path.name}


def _repeated(request: W, count: int) -> list[W]:
    """Return one request for each answer; `draw` counts them."""
    return [replace(request, draw=index) for index in range(count)]


async def _wholes(answers: list[ServiceEvents]) -> list[Whole]:
    limited = _few_scores(_few_at_a_time(answers))
    tasks = [asyncio.create_task(whole(answer)) for answer in limited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _few_scores(answers: list[ServiceEvents]) -> list[ServiceEvents]:
    """Return the same answers, which raise OptionError if their prompts have too many scores together."""
    length = 0

    async def counted(events: ServiceEvents) -> ServiceEvents:
        nonlocal length
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta) and event.prompted is not None and event.prompted.scores:
                    length += len(event.prompted.scores)
                    require_few_scores(length, len(event.prompted.scores[0].top or ()))
                yield event

    return [counted(events) for events in answers]


async def _chunks(answers: list[ServiceEvents], chunks: openai.Chunks, has_usage: bool) -> Stream:
    finishes: dict[int, Finish] = {}
    async with aclosing(_merged(answers)) as events:
        async for index, event in events:
            if isinstance(event, Delta):
                if said := chunks.delta(index, event):
                    yield b"".join(map(sse, said))
            else:
                finishes[index] = event
                yield b"".join(map(sse, chunks.finish(index, event)))
    if has_usage:
        yield sse(chunks.usage([finishes[index] for index in sorted(finishes)]))
    yield _DONE


async def _merged(
    answers: list[ServiceEvents],
) -> AsyncGenerator[tuple[int, ServiceEvent], None]:
    """Yield the events of all answers as they arrive, with the number of their answer."""
    if len(answers) == 1:
        async with aclosing(answers[0]) as events:
            async for event in events:
                yield 0, event
        return
    arrived: asyncio.Queue[tuple[int, ServiceEvent] | Exception | None] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_forward(n, answer, arrived)) for n, answer in enumerate(_few_at_a_time(answers))
    ]
    running = len(tasks)
    try:
        while running:
            found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                running -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _few_at_a_time(
    answers: list[ServiceEvents],
) -> list[ServiceEvents]:
    """Return the same answers, of which at most `MAX_ANSWERS` run at once."""
    gate = asyncio.Semaphore(openai.MAX_ANSWERS)

    async def behind_gate(events: ServiceEvents) -> ServiceEvents:
        async with gate, aclosing(events):
            async for event in events:
                yield event

    return [behind_gate(events) for events in answers] if len(answers) > openai.MAX_ANSWERS else answers


async def _forward(
    number: int,
    events: AsyncIterator[ServiceEvent],
    arrived: asyncio.Queue[tuple[int, ServiceEvent] | Exception | None],
) -> None:
    try:
        async for event in events:
            arrived.put_nowait((number, event))
    except Exception as error:
        arrived.put_nowait(error)
    else:
        arrived.put_nowait(None)
