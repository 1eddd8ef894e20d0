"""Anthropic's API: messages, and counting their tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from chaski.server.dialects import anthropic
from chaski.server.dialects.dialect import sse
from chaski.server.endpoint import Ask, Reply, Stream
from chaski.server.events import Delta, Event, whole

__all__ = ["count_tokens", "messages"]


async def messages(ask: Ask) -> Reply:
    """Answer a conversation."""
    wish = anthropic.read_messages(ask.body)
    events = ask.services.answering.chat(wish, ask.client)
    if wish.stream:
        return _stream(events, anthropic.Blocks(wish.model))
    return anthropic.message_whole(wish.model, await whole(events))


async def count_tokens(ask: Ask) -> Reply:
    """How long the prompt would be."""
    wish = anthropic.read_count(ask.body)
    return {"input_tokens": await ask.services.answering.count(wish, ask.client)}


async def _stream(events: AsyncGenerator[Event, None], blocks: anthropic.Blocks) -> Stream:
    is_first = True
    async with aclosing(events):
        async for event in events:
            said = list(blocks.delta(event) if isinstance(event, Delta) else blocks.finish(event))
            if is_first:
                length = event.prompt_tokens if isinstance(event, Delta) else event.done.prompt_tokens
                said.insert(0, blocks.begin(length))
                is_first = False
            yield b"".join(sse(data, name) for name, data in said)
