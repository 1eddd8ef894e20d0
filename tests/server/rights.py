"""The rights of the tables in docs/security.md, written out, and a guard in front of an application that
answers every request with its body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from chaski.server.http.guard import Access, Guard
from chaski.server.routes import access_of
from chaski.server.settings import Settings

__all__ = ["ADMIN", "BODY", "PUBLIC", "Guarded", "right_of"]

PUBLIC = {
    "GET /",
    "GET /web/{name}",
    "GET /favicon.ico",
    "GET /apple-touch-icon.png",
    "GET /apple-touch-icon-precomposed.png",
    "GET /robots.txt",
    "GET /health",
    "GET /v1/health",
    "GET /health/ready",
    "GET /health/live",
    "GET /openapi.json",
    "GET /docs",
    "GET /api/version",
    "GET /version",
    "GET /ping",
}
"""Routes that need no key."""

ADMIN = {
    "GET /api/live/cache",
    "POST /api/create",
    "POST /api/copy",
    "POST /api/states",
    "POST /api/cluster/drain",
    "POST /api/cluster/remove",
    "POST /api/cluster/replace",
    "POST /api/pull",
    "POST /api/push",
    "DELETE /api/delete",
    "HEAD /api/blobs/{digest}",
    "POST /api/blobs/{digest}",
    "POST /models/load",
    "POST /models/unload",
    "POST /slots/{id}",
    "POST /lora-adapters",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
}
"""Routes that need an administrator's key. All others need any key."""


BODY = "the body of a request"


def right_of(method: str, path: str) -> Access:
    """Return who may call a route, by these tables."""
    route = f"{method} {path}"
    if route in PUBLIC:
        return Access.PUBLIC
    return Access.ADMIN if route in ADMIN else Access.USER


@dataclass
class Answer:
    """`scope` is that of the request if it reached the application, else None."""

    status: int
    headers: Headers
    body: str
    scope: MutableMapping[str, Any] | None


@dataclass
class Guarded:
    """An application behind a guard, which is called without a server."""

    settings: Settings
    answered: dict[str, str] = field(default_factory=dict)

    def ask(
        self,
        method: str = "GET",
        path: str = "/api/version",
        headers: Iterable[tuple[str, str]] = (),
        **more: object,
    ) -> Answer:
        """Send a request. `more` replaces parts of its scope."""
        reached: list[Scope] = []
        sent: list[Message] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            reached.append(scope)
            body = (await receive())["body"]
            await PlainTextResponse(body, headers=self.answered)(scope, receive, send)

        async def receive() -> Message:
            return {"type": "http.request", "body": BODY.encode(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "scheme": "http",
            "server": ("127.0.0.1", 11434),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            **more,
        }
        asyncio.run(Guard(app, self.settings, access_of)(scope, receive, send))
        body = b"".join(message.get("body", b"") for message in sent).decode()
        received = Headers(raw=sent[0]["headers"])
        return Answer(sent[0]["status"], received, body, reached[0] if reached else None)
