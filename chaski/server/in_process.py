"""`InProcess`: call the routes of an application in its own event loop, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import Message

from chaski.batches.run import Reply
from chaski.server.network.jsons import dump
from chaski.server.telemetry.exchange import EXCHANGE

__all__ = ["InProcess"]


class InProcess:
    """Caller of the routes of a running application. `client` names the caller, for fairness among clients.

    Hosts, origins and keys are not checked: code that holds the application may call every route.
    """

    def __init__(self, app: Starlette, client: str) -> None:
        self._app = app
        self._client = client

    async def __call__(self, url: str, body: Mapping[str, Any]) -> Reply:
        """Send a body to a route and return its reply."""
        data = dump(body)
        requests: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
        status, headers, answer = 0, Headers(), bytearray()

        async def receive() -> Message:
            if not requests:
                await asyncio.Event().wait()  # the client stays connected
            return requests.pop()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], Headers(raw=list(message.get("headers", ())))
            else:
                answer.extend(message.get("body", b""))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": url,
            "raw_path": url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))],
            "client": (self._client, 0),
            "server": None,
            "app": self._app,
        }
        # The task may have inherited the exchange of the request that started it, which is over.
        token = EXCHANGE.set(None)
        try:
            await self._app.router(scope, receive, send)
        finally:
            EXCHANGE.reset(token)
        found = json.loads(answer)
        wait = headers.get("retry-after")
        return Reply(status, found, str(found.get("id") or ""), None if wait is None else float(wait))
