"""OpenAI's Responses API: answers as items, which later requests may go on from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from chaski.errors import ContextLengthError, OptionError
from chaski.server.dialects import responses
from chaski.server.events import Delta, Event
from chaski.server.http.dialect import sse
from chaski.server.http.endpoint import Ask, Reply, Stream
from chaski.server.http.problems import problem_of
from chaski.server.response_store import StoredResponse

__all__ = ["cancel", "count_tokens", "create", "delete", "list_input", "retrieve"]


async def create(ask: Ask) -> Reply:
    """Answer a conversation, which may go on from an earlier response."""
    items = responses.Items(_read(ask))
    ask.ignored.update(items.wish.chat.ignored)
    events = ask.services.answering.chat(items.wish.chat, ask.client)
    if items.wish.chat.stream:
        return _stream(ask, items, events)
    async with aclosing(events):
        async for event in events:
            _take(ask, items, event)
    return items.response


async def count_tokens(ask: Ask) -> Reply:
    """How long the prompt would be."""
    wish = _read(ask).chat
    ask.ignored.update(wish.ignored)
    return {
        "object": "response.input_tokens",
        "input_tokens": await ask.services.answering.count(wish, ask.client),
    }


async def retrieve(ask: Ask) -> Reply:
    """A stored response."""
    found: StoredResponse = ask.services.responses.get(ask.client, ask.request.path_params["id"])
    return found.fields


async def list_input(ask: Ask) -> Reply:
    """The items that the request of a response brought, page by page; `order`, `limit`, `after`."""
    found: StoredResponse = ask.services.responses.get(ask.client, ask.request.path_params["id"])
    return responses.page_of_items(found.input, ask.request.query_params)


async def cancel(ask: Ask) -> Reply:
    """Refused: no response is made in the background; who closes the connection ends its own."""
    ask.services.responses.get(ask.client, ask.request.path_params["id"])
    raise OptionError("only responses with background=true can be cancelled; this one is complete")


async def delete(ask: Ask) -> Reply:
    """Forget a response."""
    response_id = ask.request.path_params["id"]
    ask.services.responses.remove(ask.client, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _read(ask: Ask) -> responses.ResponseWish:
    """The request, behind the conversation that it goes on from."""
    previous = responses.previous_of(ask.body)
    earlier = ask.services.responses.get(ask.client, previous).turns if previous else ()
    return responses.read_response(ask.body, earlier, partial(ask.services.responses.find_item, ask.client))


async def _stream(ask: Ask, items: responses.Items, events: AsyncGenerator[Event, None]) -> Stream:
    async with aclosing(events):
        try:
            # An error before the first word has a status of its own.
            event = await anext(events)
        except ContextLengthError as error:
            # Codex shortens the conversation itself, but only where a stream tells it to.
            yield _lines([*items.begin(), *items.fail(problem_of(error))])
            return
        yield _lines([*items.begin(), *_take(ask, items, event)])
        try:
            async for event in events:
                if said := _take(ask, items, event):
                    yield _lines(said)
        except Exception as error:
            yield _lines(items.fail(problem_of(error)))


def _take(ask: Ask, items: responses.Items, event: Event) -> list[dict[str, Any]]:
    if isinstance(event, Delta):
        return list(items.delta(event))
    said, wish = list(items.finish(event)), items.wish
    if wish.is_kept:  # before anybody can ask for it
        turns = [*wish.turns, items.turn]
        response = StoredResponse(items.response, turns, responses.input_items(ask.body))
        ask.services.responses.add(ask.client, response)
    return said


def _lines(said: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(sse(each, each["type"]) for each in said)
