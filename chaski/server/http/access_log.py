"""A line in the log for each request: when, who, what, and how it went. Never a prompt, a query or a key."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessLog"]

_log = logging.getLogger(__name__)

_MAX_PATH = 200
_CLIENT_LEFT = 499  # as other servers write a client that did not wait for the answer


class AccessLog:
    """ASGI middleware around everything else, so that refused requests are logged too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        status, sent, has_ended = _CLIENT_LEFT, 0, False
        started = time.monotonic()

        async def counted(message: Message) -> None:
            nonlocal status, sent, has_ended
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
                has_ended = not message.get("more_body", False)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            status = 500
            raise
        finally:
            _log.info(_line(scope, status, sent, time.monotonic() - started, has_ended))


def _line(scope: Scope, status: int, sent: int, seconds: float, has_ended: bool) -> str:
    now = datetime.now().astimezone().isoformat(" ", "milliseconds")
    client = scope.get("client") or ("-", 0)
    # The path comes from strangers: no line breaks, no control sequences, no end without a limit.
    path = "".join(char if char.isprintable() else repr(char)[1:-1] for char in scope["path"][:_MAX_PATH])
    cut = "" if has_ended else " cut off"
    method = scope["method"][:16]
    return f'{now} {client[0]} "{method} {path}" {status} {seconds * 1000:.1f} ms {sent} bytes{cut}'
