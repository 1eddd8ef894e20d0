"""Anthropic's API: messages and token counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from chaski.server.answering.events import Delta, ServiceEvents, whole
from chaski.server.dialects import anthropic
from chaski.server.http.api import sse
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream

__all__ = ["count_tokens", "messages"]


async def messages(http: HTTPRequest) -> Reply:
    """Answer a conversation, which may continue from an earlier answer."""
    body = _whole_request(http)
    request = await http.read(anthropic.read_messages, body)
    http.ignored.update(request.ignored)
    events = http.services.chat.answer(request, http.client)
    if request.stream:
        return _stream(http, body, events, anthropic.Blocks(request.model))
    message = anthropic.message_whole(request.model, await whole(events))
    _keep(http, body, message["id"], message["content"])
    return message


async def count_tokens(http: HTTPRequest) -> Reply:
    """Count the tokens of the prompt."""
    request = await http.read(anthropic.read_count, _whole_request(http))
    http.ignored.update(request.ignored)
    return {"input_tokens": await http.services.tokens.count(request, http.client)}


def _whole_request(http: HTTPRequest) -> Mapping[str, Any]:
    """Return the request with the earlier messages of its thread."""
    return anthropic.with_thread(http.body, partial(http.services.threads.get, http.client))


def _keep(
    http: HTTPRequest, body: Mapping[str, Any], message_id: str, content: Sequence[Mapping[str, Any]]
) -> None:
    if anthropic.is_kept(body):
        http.services.threads.add(http.client, anthropic.kept_thread(body, message_id, content))


async def _stream(
    http: HTTPRequest,
    body: Mapping[str, Any],
    events: ServiceEvents,
    blocks: anthropic.Blocks,
) -> Stream:
    is_first = True
    async with aclosing(events):
        async for event in events:
            said = list(blocks.delta(event) if isinstance(event, Delta) else blocks.finish(event))
            if is_first:
                length = event.prompt_tokens if isinstance(event, Delta) else event.done.prompt_tokens
                said.insert(0, blocks.begin(length))
                is_first = False
            if not isinstance(event, Delta):  # before a client can continue from it
                _keep(http, body, blocks.id, blocks.content)
            yield b"".join(sse(data, name) for name, data in said)
