"""`serve`: the application on a socket, until somebody stops it."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from chaski.errors import OptionError
from chaski.runner.worker import Worker
from chaski.server.app import create_app
from chaski.server.settings import Settings
from chaski.store.store import Store

__all__ = ["listen", "serve", "server_config"]

_BACKLOG = 1024
_GRACE_SECONDS = 5


def serve(settings: Settings, store: Store, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is told the address when requests are taken.

    Raises OptionError when the address cannot be listened on.
    """
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    uvicorn.Server(server_config(create_app(settings, store, Worker))).run([listener])


def server_config(app: Starlette) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        # Of the two that uvicorn knows, the one that bounds the headers of a request.
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )


def listen(settings: Settings) -> socket.socket:
    """The socket of the server. Raises OptionError."""
    address = settings.address
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OptionError(f"listen {address.host}:{address.port}: {reason}; see OLLAMA_HOST") from None
    return listener
