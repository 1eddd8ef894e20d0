"""OpenAI's Responses API: answers as items, from which later requests may continue."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from chaski.errors import ContextLengthError, OptionError
from chaski.server.answering.events import Delta, ServiceEvent, ServiceEvents
from chaski.server.dialects import responses
from chaski.server.dialects.common.pages import page_of
from chaski.server.http.api import sse
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream
from chaski.server.http.problems import problem_of
from chaski.server.response_store import StoredResponse

__all__ = ["cancel", "count_tokens", "create", "delete", "list_input", "retrieve"]


async def create(http: HTTPRequest) -> Reply:
    """Answer a conversation, which may continue from an earlier response."""
    items = responses.Items(await _read(http))
    http.ignored.update(items.request.chat.ignored)
    events = http.services.chat.answer(items.request.chat, http.client)
    if items.request.chat.stream:
        return _stream(http, items, events)
    async with aclosing(events):
        async for event in events:
            _take(http, items, event)
    return items.response


async def count_tokens(http: HTTPRequest) -> Reply:
    """Count the tokens of the prompt."""
    request = (await _read(http)).chat
    http.ignored.update(request.ignored)
    return {
        "object": "response.input_tokens",
        "input_tokens": await http.services.tokens.count(request, http.client),
    }


async def retrieve(http: HTTPRequest) -> Reply:
    """Return a stored response."""
    found: StoredResponse = http.services.responses.get(http.client, http.request.path_params["id"])
    return found.fields


async def list_input(http: HTTPRequest) -> Reply:
    """List a page of the input items of a response (`order`, `limit`, `after`)."""
    found: StoredResponse = http.services.responses.get(http.client, http.request.path_params["id"])
    items = {item["id"]: item for item in found.input}
    return page_of(list(items), items.get, http.request.query_params)


async def cancel(http: HTTPRequest) -> Reply:
    """Refuse to cancel: no response runs in the background. Closing the connection stops a response."""
    http.services.responses.get(http.client, http.request.path_params["id"])
    raise OptionError("only responses with background=true can be cancelled; this one is complete")


async def delete(http: HTTPRequest) -> Reply:
    """Delete a stored response."""
    response_id = http.request.path_params["id"]
    http.services.responses.remove(http.client, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _read(http: HTTPRequest) -> responses.ResponseRequest:
    """Read a request together with the conversation that it continues."""
    previous = responses.previous_of(http.body)
    earlier = http.services.responses.get(http.client, previous).turns if previous else ()
    find_item = partial(http.services.responses.find_item, http.client)
    return await http.read(responses.read_response, http.body, earlier, find_item)


async def _stream(http: HTTPRequest, items: responses.Items, events: ServiceEvents) -> Stream:
    async with aclosing(events):
        try:
            # An error before the first event is returned with its own HTTP status.
            event = await anext(events)
        except ContextLengthError as error:
            # Codex shortens the conversation itself, but only if it gets this error in a stream.
            yield _lines([*items.begin(), *items.fail(problem_of(error))])
            return
        yield _lines([*items.begin(), *_take(http, items, event)])
        try:
            async for event in events:
                if said := _take(http, items, event):
                    yield _lines(said)
        except Exception as error:
            yield _lines(items.fail(problem_of(error)))


def _take(http: HTTPRequest, items: responses.Items, event: ServiceEvent) -> list[dict[str, Any]]:
    if isinstance(event, Delta):
        return list(items.delta(event))
    said, request = list(items.finish(event)), items.request
    if request.is_kept:  # before a client can ask for it
        turns = [*request.turns, items.turn]
        response = StoredResponse(items.response, turns, responses.input_items(http.body))
        http.services.responses.add(http.client, response)
    return said


def _lines(said: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(sse(each, each["type"]) for each in said)
