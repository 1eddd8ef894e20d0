"""A world: the server with its store and workers, clients, and faults, all from one seed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from chaski.address import Address
from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.settings import Settings
from chaski.store.store import Store
from tests.simulation.asks import Ask, Oracle, random_ask
from tests.simulation.client import Client
from tests.simulation.invariants import check_engine, check_idle_engine, check_idle_server
from tests.simulation.loop import Loop
from tests.simulation.processes import Popen
from tests.simulation.scheduler import SCHEDULER, Process
from tests.simulation.weights import put_models

__all__ = ["CONTEXT", "World", "WorldError"]

CONTEXT = 128
_PATIENCE = 900.0  # simulated seconds in which every request ends
_FAULT_STATUSES = {500, 502, 503, 507}


class WorldError(AssertionError):
    """Something that a user would notice."""


class World:
    """A server and its clients. `run` does a number of steps, and then lets everything come to its end."""

    def __init__(self, seed: int, folder: Path, oracle: Oracle) -> None:
        SCHEDULER.reset(seed)
        self.random = Random(seed + 2)
        self.folder = folder
        self.oracle = oracle
        self.answers = self.checked = self.faults = 0
        self.asked: list[tuple[Ask | None, Client]] = []
        self._kills = 0
        pick = self.random.choice
        SCHEDULER.switch_rate = pick((0.0, 0.02, 0.1, 0.3))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        put_models(folder)
        os.environ["OLLAMA_MODELS"] = str(folder)
        os.environ["CHASKI_PREFIX_CACHE"] = pick(("on", "memory", "off"))
        os.environ["CHASKI_PREFIX_CACHE_MEMORY"] = pick(("100KB", "1GB"))
        os.environ["CHASKI_PREFIX_CACHE_DISK"] = pick(("300KB", "1GB"))
        self.settings = Settings(
            address=Address("127.0.0.1", 80),
            context=CONTEXT,
            parallel=pick((1, 2, 3)),
            max_loaded=pick((1, 2)),
            max_queue=pick((2, 512)),
            keep_alive=pick((0.0, 1.0, *[300.0] * 5)),
            load_timeout=60.0,
            max_connections=64,
        )
        self.models = ["one", "two"] if self.random.random() < 0.2 else [pick(("one", "two"))]

    def run(self, steps: int) -> None:
        self._start()
        for number in range(steps):
            SCHEDULER.note(f"step {number}")
            self._step()
            self._check()
        self._finish()

    def _start(self) -> None:
        self.server = Process("server")
        self.app: Any = None
        self.loop = Loop()
        self.loop.set_exception_handler(self._note_exception)
        SCHEDULER.spawn(self._serve, name="loop", process=self.server)
        SCHEDULER.run_until(lambda: self.app is not None, 60, "the start of the server")

    def _serve(self) -> None:
        async def serve() -> None:
            app = create_app(self.settings, Store(self.folder), Worker)
            async with app.router.lifespan_context(app):
                self.stopped = asyncio.Event()
                self.app = app
                await self.stopped.wait()
            await self.loop.shutdown_default_executor()

        try:
            self.loop.run_until_complete(serve())
        finally:
            self.loop.close()
            self.app = None

    def _note_exception(self, loop: Any, context: dict[str, Any]) -> None:
        SCHEDULER.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        self.loop.call_soon_threadsafe(function, *arguments)

    def _step(self) -> None:
        choose = self.random.random()
        if choose < 0.6:
            self._ask()
        elif choose < 0.7:
            self._cut()
        elif choose < 0.8:
            self._fault()
        for _ in range(self.random.choice((1, 20, 100, 400))):
            if not SCHEDULER._ready and not SCHEDULER._sleeping:
                break
            SCHEDULER.turn()

    def _ask(self) -> None:
        ask = random_ask(self.random, self.models, self.settings.parallel or 1)
        client = Client("POST", ask.path, ask.body, Random(self.random.random()))
        self.asked.append((ask, client))
        self._in_loop(lambda: self.loop.create_task(client.run(self.app)))

    def _cut(self) -> None:
        running = [client for _, client in self.asked if not client.is_over]
        if running:
            self._in_loop(self.random.choice(running).cut)

    def _fault(self) -> None:
        self.faults += 1
        match self.random.randrange(3):
            case 0 if Popen.running:
                self._kills += 1
                self.random.choice(list(Popen.running.values())).kill()
            case 1 if Popen.running:
                process = self.random.choice(list(Popen.running.values())).process
                SCHEDULER.stop(process)
                SCHEDULER.run_for(self.random.choice((0.1, 5.0, 100.0)))
                SCHEDULER.resume(process)
            case 2:
                SCHEDULER.wall_offset += self.random.choice((-1e6, -3600.0, 30.0, 3600.0, 1e7))
            case _:
                SCHEDULER.run_for(self.random.choice((0.5, 40.0, 400.0)))

    def _check(self) -> None:
        """Check the engines, and the requests that are over."""
        for worker in Popen.running.values():
            if worker.engine is not None:
                check_engine(worker.engine)
        left = []
        for ask, client in self.asked:
            if not client.is_over:
                left.append((ask, client))
                continue
            self.answers += 1
            if ask is not None:
                self._check_answer(ask, client)
        self.asked = left
        if SCHEDULER.errors:
            raise WorldError(SCHEDULER.errors[0])

    def _check_answer(self, ask: Ask, client: Client) -> None:
        SCHEDULER.note(f"{client.status} {bytes(client.reply)[:0]!r}")
        if client.has_left:
            return
        if client.status != 200:
            if client.status == 503 or (client.status in _FAULT_STATUSES and self._kills):
                return
            raise WorldError(f"{ask} was refused with {client.status}: {bytes(client.reply)[:300]!r}")
        if not client.is_complete:
            raise WorldError(f"{ask} has no end: {bytes(client.reply)[-300:]!r}")
        replies = client.replies
        is_broken = any("error" in reply for reply in replies)
        if is_broken and self._kills:
            replies = [reply for reply in replies if "error" not in reply]
        said, alone = ask.read(replies), self.oracle.answer(ask)
        self.checked += 1
        SCHEDULER.note(repr(said))
        if said != alone and not (is_broken and self._kills and said.begins(alone)):
            raise WorldError(f"{ask} is answered {said}, and alone {alone}")

    def _finish(self) -> None:
        """Wait until all requests are over, stop the server, and check that nothing is left."""
        SCHEDULER.run_until(lambda: all(client.is_over for _, client in self.asked), _PATIENCE, "a request")
        self._check()
        SCHEDULER.run_for(3.0)  # cancelled calls end
        check_idle_server(self.app.state.services)
        for worker in Popen.running.values():
            if worker.engine is not None:
                check_idle_engine(worker.engine)
        self._in_loop(self.stopped.set)
        SCHEDULER.run_until(lambda: not SCHEDULER.threads, 120, "the end of the server")
        self._check()
