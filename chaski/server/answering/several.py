"""Several answers to one request: their requests, their events as they arrive, and whole answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from msgspec.structs import replace

from chaski.server.answering.events import Delta, ServiceEvent, ServiceEvents, Whole, whole
from chaski.server.answering.requests import ChatRequest, GenerateRequest
from chaski.server.answering.scores import require_few_scores

__all__ = ["MAX_ANSWERS", "merged", "repeated", "wholes"]

MAX_ANSWERS = 16
"""Largest number of answers to one prompt, and of answers of a request that run at once."""

W = TypeVar("W", ChatRequest, GenerateRequest)


def repeated(request: W, count: int) -> list[W]:
    """Return one request for each answer; `draw` counts them."""
    return [replace(request, draw=index) for index in range(count)]


async def wholes(answers: list[ServiceEvents]) -> list[Whole]:
    """Read all answers to their ends."""
    limited = _few_scores(_few_at_a_time(answers))
    tasks = [asyncio.create_task(whole(answer)) for answer in limited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def merged(
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


def _few_at_a_time(
    answers: list[ServiceEvents],
) -> list[ServiceEvents]:
    """Return the same answers, of which at most `MAX_ANSWERS` run at once."""
    gate = asyncio.Semaphore(MAX_ANSWERS)

    async def behind_gate(events: ServiceEvents) -> ServiceEvents:
        async with gate, aclosing(events):
            async for event in events:
                yield event

    return [behind_gate(events) for events in answers] if len(answers) > MAX_ANSWERS else answers


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
