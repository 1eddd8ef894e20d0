"""`Endpoint`: the common part of all handlers that take JSON and answer with JSON or with a stream.

The body is read within limits. If the client disconnects, the work is cancelled. An error has the form of the
API: before the first byte it is sent as a response with its status, and later as the end of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Self, TypeAlias, TypeVar

from msgspec import Struct, field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from chaski.errors import ChaskiError
from chaski.server.fields.audit import Known, unread_fields
from chaski.server.fields.body import Body
from chaski.server.fields.ignored import Ignored, ignored_headers
from chaski.server.http.api import Api, api_of
from chaski.server.http.guard import key_of, may_change_models
from chaski.server.http.problems import Problem, problem_of
from chaski.server.network.bodies import Bodies
from chaski.server.network.jsons import dump
from chaski.server.network.large_json import is_large, pieces
from chaski.server.settings import Settings
from chaski.server.telemetry.exchange import note_error

__all__ = ["Endpoint", "HTTPRequest", "Reply", "Stream", "client_of"]

_MAX_WAITING_PIECES = 256
"""Largest number of pieces of a stream that wait for a slow client."""

_RECEIPT_HEADER = "x-chaski-receipt"
"""Asks for a receipt where a client cannot add fields: true, or digest to leave out the prompt."""

_JSON = "application/json; charset=utf-8"

T = TypeVar("T")

_KEEP_ALIVE = "keep_alive"
"""The time for which a model stays in memory affects all keys, so only administrators may set it."""
_ONLY_KEEP_ALIVE = frozenset({"model", "name", "stream", _KEEP_ALIVE})
"""The fields of a request that asks for nothing else, such as that of `chaski stop`."""

_HARMLESS_QUERIES = frozenset({"beta", "api-version"})
"""Query parameters with which clients name the version of an API."""

Stream: TypeAlias = AsyncGenerator[bytes, None]
Reply: TypeAlias = Mapping[str, Any] | list[Any] | Response | Stream
"""The result of a handler: an object or a list for the body, a whole response, or pieces of a stream."""


class HTTPRequest(Struct, frozen=True):
    """A request with JSON.

    client: the key or address of the client, for fairness among clients
    ignored: the parts of the request that are ignored, which a header of the answer names
    services: the services of the application
    """

    body: Mapping[str, Any]
    client: str
    request: Request
    ignored: Ignored = field(default_factory=Ignored)

    async def read(self, reader: Callable[..., T], *arguments: object) -> T:
        """Call a reader of the body, without blocking the event loop if the body is large."""
        bodies: Bodies = self.services.bodies
        return await bodies.work_on(self.request.scope, reader, *arguments)

    @property
    def services(self) -> Any:
        return self.request.app.state.services

    @property
    def owner(self) -> str:
        """The owner of stored answers: the key, or "" for the only user of a server without keys."""
        return self.client if self.services.settings.has_keys else ""


Handler: TypeAlias = Callable[[HTTPRequest], Awaitable[Reply]]


class Endpoint:
    """The ASGI application of one handler."""

    def __init__(self, handler: Handler, body: Body | None = None, queries: Iterable[str] = ()) -> None:
        """Describe what `handler` reads: its body, or None if it has none, and its query parameters."""
        self.handler = handler
        self.body = body
        self._queries = _HARMLESS_QUERIES.union(queries)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = api_of(scope["path"])
        described = self.body
        if described is None or (described.may_be_empty and _is_bodiless(Headers(scope=scope))):
            await self._work({}, api, scope, receive, send)
            return
        bodies: Bodies = scope["app"].state.services.bodies
        try:
            async with bodies.read(scope, receive, described.most, described.list_name) as body:
                await self._work(body, api, scope, receive, send)
        except ChaskiError as error:  # from reading the body; errors of the work have been sent already
            await _refuse(api, error, scope, receive, send)

    async def _work(
        self, body: Mapping[str, Any], api: Api, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the handler until it has answered or the client has disconnected."""
        is_restricted = _KEEP_ALIVE in body and not may_change_models(Headers(scope=scope), _settings(scope))
        if is_restricted and not body.keys() - _ONLY_KEEP_ALIVE:
            problem = Problem(403, "forbidden: loading and unloading models requires an admin key")
            await api.refusal(problem)(scope, receive, send)
            return
        body = _with_receipt(body, Headers(scope=scope), self.body)
        allowed = {name: body[name] for name in body if name != _KEEP_ALIVE} if is_restricted else body
        http = HTTPRequest(allowed, client_of(scope), Request(scope))
        if self.body is not None:
            await http.read(_note_unread, http.ignored, body, self.body.fields)
        if is_restricted:
            http.ignored.add("field", _KEEP_ALIVE)
        for name in http.request.query_params.keys() - self._queries:
            http.ignored.add("query", name)
        send = _telling(send, http.ignored)
        work = asyncio.create_task(self._answer(http, api, scope, receive, send))
        watch = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
        if not work.cancelled():
            work.result()

    async def _answer(self, http: HTTPRequest, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self.handler(http)
            if isinstance(reply, AsyncGenerator):
                await _stream(reply, api.media_type, api, send)
                return
            if not isinstance(reply, Response):
                if is_large(reply):
                    await _stream(_written(reply), _JSON, api, send)
                    return
                reply = Response(dump(reply), media_type=_JSON)
        except Exception as error:
            await _refuse(api, error, scope, receive, send)
            return
        await reply(scope, receive, send)


def _with_receipt(body: Mapping[str, Any], headers: Headers, described: Body | None) -> Mapping[str, Any]:
    """Return the body with the field `receipt`, if the header asks for one and the route has this field."""
    asked = headers.get(_RECEIPT_HEADER)
    if asked is None or described is None or "receipt" not in described.fields or "receipt" in body:
        return body
    words = {"true": True, "1": True, "false": False, "0": False, "digest": {"prompt": "digest"}}
    return {**body, "receipt": words.get(asked.strip().lower(), asked)}


def _note_unread(ignored: Ignored, body: Mapping[str, Any], fields: Mapping[str, Known]) -> None:
    for name in unread_fields(body, fields):
        ignored.add("field", name)


def _telling(send: Send, ignored: Ignored) -> Send:
    """Return a `send` that adds the header of ignored fields, if they are known before the answer begins."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            told = ignored_headers(tuple(ignored)).items()
            headers = [(name.encode(), value.encode()) for name, value in told]
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return tell


async def _written(reply: Mapping[str, Any] | list[Any]) -> Stream:
    """Encode a large body in a thread, no faster than the client reads it."""
    parts = pieces(reply)
    while piece := await asyncio.to_thread(next, parts, b""):
        yield piece


async def _stream(pieces: Stream, media_type: str, api: Api, send: Send) -> None:
    """Send pieces as they arrive. An error before the first piece is raised; a later one ends the stream."""
    async with aclosing(pieces):
        first = await anext(pieces, b"")
        headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with _Outbox(send) as outbox:
            await outbox.add(first)
            try:
                async for piece in pieces:
                    await outbox.add(piece)
            except Exception as error:
                note_error(error)
                await outbox.add(api.ending(problem_of(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Outbox:
    """Sender that joins the pieces of a body which arrive without a pause.

    It sends the waiting pieces as soon as their source has to wait for more. Sending a piece costs as much as
    all other work for a token.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pieces: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        """Send the rest, unless an error ended the stream."""
        if self._sending is None:
            return
        if kind is None:
            await self._sending
        else:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def add(self, piece: bytes) -> None:
        """Queue a piece, and wait if too many pieces are waiting for the client."""
        self._pieces.append(piece)
        if self._sending is None:
            self._sending = asyncio.create_task(self._flush())
        elif len(self._pieces) >= _MAX_WAITING_PIECES:
            await asyncio.shield(self._sending)

    async def _flush(self) -> None:
        while self._pieces:
            body = b"".join(self._pieces)
            self._pieces.clear()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._sending = None


def _settings(scope: Scope) -> Settings:
    settings: Settings = scope["app"].state.services.settings
    return settings


async def _refuse(api: Api, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    note_error(error)
    await api.refusal(problem_of(error))(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_bodiless(headers: Headers) -> bool:
    """Return whether the headers of a request announce no body."""
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers


def client_of(scope: Scope) -> str:
    """Return the client's key, or else its address."""
    return key_of(Headers(scope=scope)) or (scope.get("client") or ("",))[0]
