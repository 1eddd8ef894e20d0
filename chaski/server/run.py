"""`serve`: runs the application on a socket until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.network.connections import Connection, ServerConfig
from chaski.server.network.readers import Patience
from chaski.server.settings import Settings
from chaski.store.store import Store

if TYPE_CHECKING:
    from chaski.cluster.connection import Cluster

__all__ = ["listen", "serve", "server_config"]

_BACKLOG = 1024
_GRACE_SECONDS = 5


def serve(settings: Settings, store: Store, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. Calls `ready` with the address as soon as requests are accepted.

    Answers that are being made have a few seconds to end; a second SIGINT does not wait for them. Raises
    OptionError when the address cannot be listened on.
    """
    listener = listen(settings)
    with ExitStack() as stack:
        cluster = _cluster(settings, stack)
        app = create_app(settings, store, Worker if cluster is None else cluster.open_model, cluster)
        _serve(app, listener, settings, ready)


def _serve(app: Starlette, listener: socket.socket, settings: Settings, ready: Callable[[str], None]) -> None:
    host, port = listener.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server = _Server(server_config(app, settings))
    with suppress(KeyboardInterrupt):  # before the server listens to signals
        server.run([listener])


def _cluster(settings: Settings, stack: ExitStack) -> Cluster | None:
    """Return the cluster that computes the models, which is left with the stack; None for this machine.

    Raises ClusterError, or MissingPackageError where Ray is not installed.
    """
    if settings.cluster is None:
        return None
    from chaski.cluster.connection import Cluster

    cluster = Cluster(
        settings.cluster,
        settings.replicas,
        Environment.read().threads,
        settings.shards,
        settings.split,
        settings.gpus,
    )
    stack.callback(cluster.close)
    return cluster


class _Server(uvicorn.Server):
    """uvicorn's server without the signal that it raises again at its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(self._is_news)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return whether a record is news: that late requests are cancelled at the end is none."""
        cause = record.exc_info[1] if record.exc_info else None
        return not (self.force_exit or (self.should_exit and isinstance(cause, asyncio.CancelledError)))


def server_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    """Return the settings of uvicorn."""
    return ServerConfig(
        app,
        header_timeout=settings.header_timeout,
        max_connections=settings.max_connections,
        patience=Patience(settings.body_timeout),
        answer_patience=Patience.for_answers(settings.read_timeout),
        http=Connection,
        loop="asyncio",  # not another one because it is installed: uvloop starts no process in its own group
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody can send one, and who asks decides what is shared
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )


def listen(settings: Settings) -> socket.socket:
    """Open the socket of the server. Raises OptionError."""
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
