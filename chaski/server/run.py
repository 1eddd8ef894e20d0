"""`serve`: run the application on a socket until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.freed_memory import keep_little_freed_memory
from chaski.server.models.loaded import OpenWorker
from chaski.server.network.connections import Connection, ServerConfig
from chaski.server.network.readers import Patience
from chaski.server.settings import Settings
from chaski.store.store import Store

if TYPE_CHECKING:
    from chaski.cluster.connection import Cluster

__all__ = ["Server", "listen", "serve", "server_config", "worker_opener"]

_BACKLOG = 1024
# New connections that are accepted before answers go on.
_ACCEPTED_AT_ONCE = 16
# See `gc.set_threshold`: all old objects are looked through ten times more seldom than usual.
_COLLECTIONS = 1000, 10, 100
# Seconds between two notes that strangers can cause, such as one about bytes that are no HTTP.
_NOTE_SECONDS = 60.0
# Seconds for the errors of requests that the end of the server cuts off.
_LAST_WORDS = 2.0


def serve(settings: Settings, store: Store, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. Calls `ready` with the URL as soon as the server accepts connections.

    Running answers get `settings.grace` seconds to finish; a second SIGINT stops them at once. Raises
    OptionError if the server cannot listen on the address.
    """
    keep_little_freed_memory()
    listener = listen(settings)
    with ExitStack() as stack:
        cluster = _cluster(settings, stack)
        open_worker = worker_opener() if cluster is None else cluster.open_model
        app = create_app(settings, store, open_worker, cluster)
        _serve(app, listener, settings, ready)


def worker_opener() -> OpenWorker:
    """Return the function that loads models without Ray: on this machine, or on nodes."""
    environment = Environment.read()
    if environment.backend != "sharded" or not environment.nodes:
        return Worker
    from chaski.cluster.nodes_model import nodes_model_opener

    return nodes_model_opener(environment)


def _serve(app: Starlette, listener: socket.socket, settings: Settings, ready: Callable[[str], None]) -> None:
    host, port = listener.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server = Server(app, settings)
    _collect_old_objects_seldom()
    with suppress(KeyboardInterrupt):  # before the server listens to signals
        server.run([listener])


def _collect_old_objects_seldom() -> None:
    """Let Python look for cycles of unused objects mostly among new ones.

    Among all objects of 10,000 connections it takes 0.7 s, and no answer goes on meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def _cluster(settings: Settings, stack: ExitStack) -> Cluster | None:
    """Return the cluster that computes the models; None for this machine. `stack` closes the cluster.

    Raises ClusterError, or MissingPackageError if Ray is not installed.
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
        settings.max_loaded,
        f"{socket.gethostname()}:{settings.address.port}",
    )
    stack.callback(cluster.close)
    return cluster


class Server(uvicorn.Server):
    """uvicorn's server, except for its end.

    It accepts few connections at a time, and does not raise the received signal again. Requests that are not
    answered within `settings.grace` seconds get an error in the form of their API, before uvicorn would cut
    them off.
    """

    def __init__(self, app: Starlette, settings: Settings) -> None:
        super().__init__(server_config(app, settings))
        self._app, self._grace = app, settings.grace
        self._next_note = 0.0
        logging.getLogger("uvicorn.error").addFilter(self._is_news)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has set it to the number that it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        await asyncio.sleep(self._grace)
        await self._app.state.services.models.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return False for log records about requests that the end of the server cancels.

        Notes that strangers can cause at will have a minute between them.
        """
        if record.levelno == logging.WARNING:
            if (now := monotonic()) < self._next_note:
                return False
            self._next_note = now + _NOTE_SECONDS
            return True
        cause = record.exc_info[1] if record.exc_info else None
        return not (self.force_exit or (self.should_exit and isinstance(cause, asyncio.CancelledError)))


def server_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return ServerConfig(
        app,
        header_timeout=settings.header_timeout,
        max_connections=settings.max_connections,
        patience=Patience(settings.body_timeout),
        answer_patience=Patience.for_answers(settings.read_timeout),
        http=Connection,
        backlog=_ACCEPTED_AT_ONCE,
        loop="asyncio",  # even if uvloop is installed, which cannot start a process in its own group
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can send them, and the client's address decides what is shared
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.grace + _LAST_WORDS),
    )


def listen(settings: Settings) -> socket.socket:
    """Open the listening socket of the server. Raises OptionError if the address cannot be used."""
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
        raise OptionError(
            f"cannot listen on {address.host}:{address.port}: {reason}; see OLLAMA_HOST"
        ) from None
    return listener
