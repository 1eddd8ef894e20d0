"""Anthropic's API: messages, and counting their tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from chaski.server.dialects import anthropic
from chaski.server.events import Delta, Event, whole
from chaski.server.http.dialect import sse
from chaski.server.http.endpoint import Ask, Reply, Stream

__all__ = ["count_tokens", "messages"]


async def messages(ask: Ask) -> Reply:
    """Answer a conversation, which may go on from an earlier answer."""
    body = _whole_request(ask)
    wish = anthropic.read_messages(body)
    ask.ignored.update(wish.ignored)
    events = ask.services.answering.chat(wish, ask.client)
    if wish.stream:
        return _stream(ask, body, events, anthropic.Blocks(wish.model))
    message = anthropic.message_whole(wish.model, await whole(events))
    _keep(ask, body, message["id"], message["content"])
    return message


async def count_tokens(ask: Ask) -> Reply:
    """How long the prompt would be."""
    wish = anthropic.read_count(_whole_request(ask))
    ask.ignored.update(wish.ignored)
    return {"input_tokens": await ask.services.answering.count(wish, ask.client)}


def _whole_request(ask: Ask) -> Mapping[str, Any]:
    """With what was said before in its thread."""
    return anthropic.with_thread(ask.body, partial(ask.services.threads.get, ask.client))


def _keep(ask: Ask, body: Mapping[str, Any], message_id: str, content: Sequence[Mapping[str, Any]]) -> None:
    if anthropic.is_kept(body):
        ask.services.threads.add(ask.client, anthropic.kept_thread(body, message_id, content))


async def _stream(
    ask: Ask, body: Mapping[str, Any], events: AsyncGenerator[Event, None], blocks: anthropic.Blocks
) -> Stream:
    is_first = True
    async with aclosing(events):
        async for event in events:
            said = list(blocks.delta(event) if isinstance(event, Delta) else blocks.finish(event))
            if is_first:
                length = event.prompt_tokens if isinstance(event, Delta) else event.done.prompt_tokens
                said.insert(0, blocks.begin(length))
                is_first = False
            if not isinstance(event, Delta):  # before anybody can go on behind it
                _keep(ask, body, blocks.id, blocks.content)
            yield b"".join(sse(data, name) for name, data in said)
