"""The server of a world: it starts and ends, gets requests, and is checked."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from inspect import CORO_CREATED, getcoroutinestate
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from chaski.names import Digest
from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.network.connections import Connection
from chaski.server.run import Server
from chaski.server.settings import Settings
from chaski.store.store import Store
from tests.simulation.asks import Ask, Oracle
from tests.simulation.client import Client
from tests.simulation.disk import DISK
from tests.simulation.invariants import check_engine, check_idle_engine, check_idle_server, check_store
from tests.simulation.loop import Loop
from tests.simulation.machine import MEMORY
from tests.simulation.processes import Popen
from tests.simulation.scheduler import SCHEDULER, Process
from tests.simulation.wire import Wire

__all__ = ["PATIENCE", "Served", "WorldError"]

PATIENCE = 900.0
"""Simulated seconds in which every request ends."""
_ROOMS, _HIGHS = (200, 5000, 100_000), (500, 65536)
_FAULTS = {500, 502, 503, 504, 507}


class WorldError(AssertionError):
    """Something that a user would notice."""


class _Asked(Struct):
    """A request in progress.

    deletes    the pulled model that it deletes
    is_harmed  a fault happened meanwhile, so that it may end with an error
    """

    ask: Ask | None
    client: Client
    then: Callable[[], object] | None
    deletes: str | None = None
    is_harmed: bool = False


class Served:
    """A server and the requests to it.

    asked   the requests that are not known to be over
    copies, blobs, pulled  what the store has, since the requests for it were answered
    """

    settings: Settings

    def __init__(self, random: Random, folder: Path, oracle: Oracle) -> None:
        self.random = random
        self.folder = folder
        self.oracle = oracle
        self.answers = self.checked = 0
        self.asked: list[_Asked] = []
        self.copies: set[str] = set()
        self.blobs: set[Digest] = set()
        self.pulled: set[str] = set()
        self.strays: set[str | None] = set()  # deletes that may still be under way: their client has left
        self.num_killed = 0
        self.ports = itertools.count(1)
        self.harmful_until = 0.0

    def _start(self) -> None:
        self.server = Process("server")
        self.app: Any = None
        self.loop = Loop()
        self.loop.set_exception_handler(self._note_exception)
        self.wires: dict[int, Wire] = {}
        self.kept: list[Wire] = []
        SCHEDULER.spawn(self._serve, name="loop", process=self.server)
        SCHEDULER.run_until(lambda: self.app is not None, 60, "the start of the server")

    def _serve(self) -> None:
        async def serve() -> None:
            app = create_app(self.settings, Store(self.folder), Worker)
            server = Server(app, self.settings)
            server.servers, server.lifespan = [], _Lifespan()
            server.config.load()
            server.config.loaded_app = self._handle
            async with app.router.lifespan_context(app):
                self.http = server
                self.stopped = asyncio.Event()
                self.app = app
                await self.stopped.wait()
                server.should_exit = True
                await server.shutdown()
            logging.getLogger("uvicorn.error").filters.clear()
            await _end_tasks()
            await self.loop.shutdown_default_executor()

        try:
            self.loop.run_until_complete(serve())
        finally:
            for task in asyncio.all_tasks(self.loop):
                if getcoroutinestate(task.get_coro()) == CORO_CREATED:
                    task.get_coro().close()  # no turn was left to begin it
            self.loop.close()
            self.app = None

    def _note_exception(self, loop: Any, context: dict[str, Any]) -> None:
        SCHEDULER.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        self.loop.call_soon_threadsafe(function, *arguments)

    def _soon(self, rounds: int, function: Callable[[], object]) -> None:
        """Call a function after some rounds of the loop. Call this in the loop."""
        if rounds:
            self.loop.call_soon(self._soon, rounds - 1, function)
        else:
            function()

    def _send(
        self,
        client: Client,
        ask: Ask | None = None,
        then: Callable[[], object] | None = None,
        deletes: str | None = None,
        at: float = 0.0,
    ) -> None:
        """Send a request now or at a time; `then` is called when it was answered with success."""
        self.asked.append(_Asked(ask, client, then, deletes, SCHEDULER.now < self.harmful_until))
        self._in_loop(self.loop.call_at, at, self._connect, client)

    def _connect(self, client: Client) -> None:
        if self.stopped.is_set():
            client.turn_away()  # the server accepts nothing any more
        else:
            self.loop.create_task(self._run(client))

    async def _run(self, client: Client) -> None:
        await client.run(self._wire)
        if client.kept is not None:
            self.kept.append(client.kept)

    def _wire(self, client: Client) -> Wire:
        """Give a client a new connection, or one that another client has left open."""
        self.kept = [wire for wire in self.kept if not wire.is_ended]
        if self.kept and self.random.random() < 0.5:
            wire = self.kept.pop()
        else:
            port, protocol = (
                next(self.ports),
                Connection(self.http.config, self.http.server_state, {}, self.loop),
            )
            room, high = self.random.choice(_ROOMS), self.random.choice(_HIGHS)
            wire = self.wires[port] = Wire(protocol, self.loop, (client.address, port), room, high)
        wire.client = client
        return wire

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and let the client know when it is done."""
        client = self.wires[scope["client"][1]].client
        client.begin_handling()
        try:
            await self.app(scope, receive, send)
        finally:
            client.end_handling()

    def _client(self, method: str, path: str, body: Mapping[str, Any] | bytes | None) -> Client:
        return Client(method, path, body, Random(self.random.random()))

    def _are_over(self) -> bool:
        return all(each.client.is_over for each in self.asked)

    def _harm_open_requests(self) -> None:
        """Allow errors in the answers to the requests that are open now, or begin before it is noticed."""
        self.harmful_until = SCHEDULER.now + 1.0
        for each in self.asked:
            each.is_harmed = True

    def _cut_power(self) -> None:
        """End all processes at once, and start a server with what is on the disk."""
        self.loop.set_exception_handler(lambda loop, context: None)  # its tasks do not end
        SCHEDULER.kill_all()
        self.asked.clear()
        self.strays.clear()
        DISK.cut_power()
        check_store(Store(self.folder), self.copies | self.pulled, self.blobs)
        self._start()

    def _check(self) -> None:
        """Check the engines, and the requests that are over."""
        for worker in Popen.running.values():
            if worker.engine is not None:
                check_engine(worker.engine)
        over = [each for each in self.asked if each.client.is_over]
        self.asked = [each for each in self.asked if not each.client.is_over]
        self.strays |= {each.deletes for each in over if each.client.has_left}
        for each in over:
            self.answers += 1
            SCHEDULER.note(f"{each.client.status} {len(each.client.reply)}")
            if not each.client.has_left:
                self._check_reply(each)
        if SCHEDULER.errors:
            raise WorldError(SCHEDULER.errors[0])

    def _check_reply(self, asked: _Asked) -> None:
        client, status = asked.client, asked.client.status
        if status in (200, 201):
            if not client.is_complete:
                raise WorldError(f"{client.path} has no end: {bytes(client.reply)[-300:]!r}")
            if asked.then is not None:
                asked.then()
            if asked.ask is not None:
                self._check_answer(asked.ask, client.replies, asked.is_harmed)
        elif not (self._is_refused(client) or (status in _FAULTS and self._may_fail(asked))):
            raise WorldError(f"{asked.ask or client.path}: {status} {bytes(client.reply)[:300]!r}")

    def _is_refused(self, client: Client) -> bool:
        """Return whether a refusal is right in any world."""
        is_busy = any(
            reason in client.reply for reason in (b"server busy", b"is in use", b"CHASKI_MAX_CONNECTIONS")
        )
        return client.status in client.refusals and (client.status != 503 or is_busy)

    def _may_fail(self, asked: _Asked) -> bool:
        """Return whether a request may fail: files are not changed by requests that ask a model."""
        is_short = MEMORY.free < 1 << 30 or self.num_killed > 2
        return asked.is_harmed or is_short or (asked.ask is None and DISK.num_failed > 0)

    def _check_answer(self, ask: Ask, replies: list[Any], is_harmed: bool) -> None:
        whole = [reply for reply in replies if "error" not in reply]
        is_cut = len(whole) < len(replies) and is_harmed
        said, alone = ask.read(whole if is_cut else replies), self.oracle.answer(ask)
        self.checked += 1
        SCHEDULER.note(repr(said))
        if said != alone and not (is_cut and said.begins(alone)):
            raise WorldError(f"{ask} is answered {said}, and alone {alone}")

    def _check_idle(self) -> None:
        """Check that nothing goes on for requests that are over."""
        SCHEDULER.run_for(0.001)  # cancelled calls end, long before their answers would
        check_idle_server(self.app.state.services)
        http = self.http.server_state
        if len(http.connections) > sum(not wire.is_closing() for wire in self.kept) or http.tasks:
            raise WorldError("connections are open or have tasks without a request")
        for worker in Popen.running.values():
            if worker.engine is not None:
                check_idle_engine(worker.engine)

    def _finish(self) -> None:
        """Wait until all requests are over, or stop the server at once; check that nothing is left."""
        if self.random.random() < 0.8:
            SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
            self._check()
            self._check_idle()
        self._harm_open_requests()
        self._in_loop(self.stopped.set)
        SCHEDULER.run_until(lambda: self.app is None, 120, "the end of the server")
        SCHEDULER.run_until(lambda: not SCHEDULER.threads, 120, "the end of threads")
        self._check()
        DISK.fail(0.0)
        check_store(Store(self.folder), self.copies | self.pulled, self.blobs)


class _Lifespan:
    """The lifespan of the application, which ends after the server."""

    async def shutdown(self) -> None:
        """Do nothing."""


async def _end_tasks() -> None:
    """Cancel all other tasks, as `asyncio.run` does."""
    others = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
