"""`Exchanges`: record each HTTP request and its answer, and notify listeners of its end."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chaski.server.telemetry.exchange import EXCHANGE, Exchange, note_error

__all__ = ["REQUEST_ID_HEADER", "Exchanges", "Listener"]

REQUEST_ID_HEADER = "X-Request-Id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")

Listener: TypeAlias = Callable[[Scope, Exchange], None]
"""Function that is called at the end of each request. It must neither block nor raise."""


class Exchanges:
    """ASGI middleware around everything else, so that refused requests are recorded too.

    Each answer has a header with the id of its request. A client may choose this id.
    """

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(_request_id(scope))
        header = REQUEST_ID_HEADER.lower().encode(), exchange.id.encode()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            elif message["type"] == "http.response.body":
                exchange.sent += len(message.get("body", b""))
                exchange.has_ended = not message.get("more_body", False)

        token = EXCHANGE.set(exchange)
        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            exchange.status = 500
            note_error(error)
            raise
        finally:
            EXCHANGE.reset(token)
            exchange.ended = perf_counter()
            for listener in self._listeners:
                listener(scope, exchange)


def _request_id(scope: Scope) -> str:
    """Return the client's id of a request if it is short and plain, or else a new id."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
