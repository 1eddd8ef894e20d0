"""A world: the server with its store and workers, clients, and faults, all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.address import Address
from chaski.names import Digest
from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.settings import Settings
from chaski.store.store import Store
from tests.simulation.asks import Ask, Oracle, each_kind, random_ask
from tests.simulation.client import Client
from tests.simulation.disk import DISK
from tests.simulation.invariants import check_engine, check_idle_engine, check_idle_server, check_store
from tests.simulation.loop import Loop
from tests.simulation.machine import MEMORY
from tests.simulation.processes import Popen
from tests.simulation.registry import REGISTRY
from tests.simulation.scheduler import SCHEDULER, Process
from tests.simulation.weights import PULLED, TUNED, put_models

__all__ = ["CONTEXT", "World", "WorldError"]

CONTEXT = 128
_PATIENCE = 900.0  # simulated seconds in which every request ends
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


class World:
    """A server and its clients. `run` does a number of steps, and then lets everything come to its end."""

    def __init__(self, seed: int, folder: Path, oracle: Oracle) -> None:
        SCHEDULER.reset(seed)
        self.random = Random(seed + 2)
        self.folder = folder
        self.oracle = oracle
        self.answers = self.checked = self.faults = self.pulls = 0
        self.asked: list[_Asked] = []
        self.named: set[str] = set()
        self.copies: set[str] = set()
        self.blobs: set[Digest] = set()
        self.pulled: set[str] = set()
        self.deleted: list[str] = []
        self.strays: set[str | None] = set()  # deletes that may still be under way: their client has left
        self.num_killed = 0
        self.harmful_until = 0.0
        about = self.random.random()
        self.is_about_store, self.is_about_states = about < 0.25, about > 0.9
        self.is_crowded = 0.25 < about < 0.55
        MEMORY.reset()
        REGISTRY.begin_world(Random(seed + 4))
        pick = self.random.choice
        SCHEDULER.switch_rate = pick((0.0, 0.02, 0.1, 0.3))
        for each in (folder, folder.with_name("shadow")):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir(parents=True)
        put_models(folder)
        DISK.use(folder, folder.with_name("shadow"), Random(seed + 3))
        os.environ["OLLAMA_MODELS"] = str(folder)
        os.environ["CHASKI_PREFIX_CACHE"] = pick(("on", "memory", "off")[: 2 if self.is_about_states else 3])
        os.environ["CHASKI_PREFIX_CACHE_MEMORY"] = pick(("100KB", "1GB"))
        os.environ["CHASKI_PREFIX_CACHE_DISK"] = pick(("300KB", "1GB"))
        self.settings = Settings(
            address=Address("127.0.0.1", 80),
            context=CONTEXT,
            parallel=pick((1, 2, 3)),
            max_loaded=pick((1, 2)),
            max_queue=pick((2, 512)),
            keep_alive=pick((0.0, 1.0, *[300.0] * (1 if self.is_crowded else 5))),
            load_timeout=60.0,
            max_connections=64,
            states=folder / "slots",
        )
        self.models = (
            ["one", "two"]
            if self.random.random() < (0.5 if self.is_crowded else 0.2)
            else [pick(("one", "two"))]
        )
        if "one" in self.models and self.random.random() < 0.5:
            self.models.append(TUNED)

    def run(self, steps: int) -> None:
        self._start()
        for number in range(steps):
            SCHEDULER.note(f"step {number}")
            self._step()
            self._check()
        self._finish()

    def rehearse(self) -> None:
        """Send a request of each kind, also to workers that die.

        All modules are then imported before the first world begins.
        """
        self.settings = replace(self.settings, parallel=2, max_queue=512)
        self._start()
        for ask in [*each_kind("one"), *each_kind("two"), *each_kind(TUNED)]:
            self._send(self._client("POST", ask.path, ask.body), ask)
            SCHEDULER.run_until(self._are_over, _PATIENCE, "a request")
        for number in range(8):
            self._change_store()
            self._ask()
            SCHEDULER.run_for(number * 1e-3)
            self._harm_open_requests()
            for worker in list(Popen.running.values()):
                worker.kill()
            SCHEDULER.run_until(self._are_over, _PATIENCE, "a request")
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

    def _step(self) -> None:
        ask, change, cut, fault = (10, 50, 5, 35) if self.is_about_store else (55, 10, 10, 18)
        if self.is_about_states:
            ask, change = 40, 45
        if self.is_crowded:
            ask, change, cut = 60, 2, 20
        wait = max(0, 100 - ask - change - cut - fault)
        change_something = self._use_slot if self.is_about_states else self._change_store
        actions = (self._ask, change_something, self._cut, self._fault, lambda: None)
        self.random.choices(actions, (ask, change, cut, fault, wait))[0]()
        for _ in range(self.random.choice((1, 20, 100, 400))):
            if not SCHEDULER.can_run:
                break
            SCHEDULER.turn()

    def _send(
        self,
        client: Client,
        ask: Ask | None = None,
        then: Callable[[], object] | None = None,
        deletes: str | None = None,
    ) -> None:
        """Send a request; `then` is called when it was answered with success."""
        self.asked.append(_Asked(ask, client, then, deletes, SCHEDULER.now < self.harmful_until))
        self._in_loop(lambda: self.loop.create_task(client.run(self.app)))

    def _client(self, method: str, path: str, body: Mapping[str, Any] | bytes | None) -> Client:
        return Client(method, path, body, Random(self.random.random()))

    def _ask(self) -> None:
        for _ in range(self.random.choice((2, 3, 5)) if self.is_crowded else 1):
            if self.random.random() < 0.1:
                self._ask_without_end()
            else:
                self._ask_once()

    def _ask_without_end(self) -> None:
        """Ask for an answer that only the end of its client ends."""
        options = {"num_predict": -1, "temperature": 0, "repeat_penalty": 1.5}
        body = {"model": self.models[0], "prompt": "the llama", "raw": True, "options": options}
        client = self._client("POST", "/api/generate", body)
        client.leave_after(self.random.choice((1, 2, 5)))
        self._send(client)

    def _ask_once(self) -> None:
        ask = random_ask(self.random, [*self.models, *sorted(self.pulled)], self.settings.parallel or 1)
        client = self._client("POST", ask.path, ask.body)
        if ask.model in PULLED:
            client.refusals.add(404)  # it may be deleted meanwhile
        self._send(client, ask)

    def _change_store(self) -> None:
        """Copy, pull or delete a model, upload a blob, keep or restore a slot, or look at the store."""
        copies = list(self.copies)
        match self.random.randrange(10):
            case 0 | 1:
                name = f"copy{len(self.named)}"
                self.named.add(name)
                body = {"source": self.random.choice(self.models), "destination": name}
                self._send(self._client("POST", "/api/copy", body), None, lambda: self.copies.add(name))
            case 2 if copies:
                name = self.random.choice(copies)
                self.copies.remove(name)
                self._send(self._client("DELETE", "/api/delete", {"model": name}))
            case 3:
                data = self.random.randbytes(self.random.choice((10, 100_000)))
                digest = Digest(hashlib.sha256(data).hexdigest())
                done = partial(self.blobs.add, digest)
                self._send(self._client("POST", f"/api/blobs/{digest}", data), None, done)
            case 4 | 5:
                for _ in range(self.random.choice((1, 1, 2))):
                    self._pull(self.random.choice(PULLED))
            case 6:
                name = self.random.choice(PULLED)
                self.pulled.discard(name)
                self.deleted.append(name)
                client = self._client("DELETE", "/api/delete", {"model": name})
                client.refusals.add(404)
                self._send(client, deletes=name)
            case 7 | 8:
                self._use_slot()
            case _:
                path = self.random.choice(("/api/tags", "/api/ps", "/metrics", "/slots?model=one"))
                self._send(self._client("GET", path, None))

    def _use_slot(self) -> None:
        """Save the state of a slot, restore it, or erase it. There may be none, or no such file."""
        if self.is_about_states:
            SCHEDULER.run_until(self._are_over, _PATIENCE, "a request")
        action = self.random.choice(("save", "save", "restore", "restore", "erase"))
        body = {"model": self.random.choice(self.models), "filename": self.random.choice(("a", "a", "b"))}
        path = f"/slots/{self.random.choice((0, 0, 0, 1))}?action={action}"
        client = self._client("POST", path, body)
        client.refusals |= {400, 404, 501}
        self._send(client)

    def _pull(self, name: str) -> None:
        """Pull a model. It is there afterwards, unless it was deleted meanwhile or a delete is under way."""
        client = self._client("POST", "/api/pull", {"model": name})
        is_deleted = name in self.strays or any(each.deletes == name for each in self.asked)
        num_deleted = len(self.deleted)

        def note() -> None:
            last = client.replies[-1]
            if last.get("status") == "success":
                self.pulls += 1
                if not is_deleted and name not in self.deleted[num_deleted:]:
                    self.pulled.add(name)
            elif "error" not in last or not (REGISTRY.num_failed or DISK.num_failed):
                raise WorldError(f"the pull of {name} ends with {last}")

        self._send(client, then=note)

    def _cut(self) -> None:
        running = [each.client for each in self.asked if not each.client.is_over]
        if running:
            self._in_loop(self.random.choice(running).cut)

    def _fault(self) -> None:
        """Let something change or go wrong: a worker, the clock, disk, memory, power, or the registry."""
        self.faults += 1
        workers = list(Popen.running.values())
        match 5 if self.is_about_store and self.random.random() < 0.5 else self.random.randrange(9):
            case 0 if workers:
                self._harm_open_requests()
                self.num_killed += 1
                self.random.choice(workers).kill()
            case 1 if workers:
                self._harm_open_requests()
                process = self.random.choice(workers).process
                SCHEDULER.stop(process)
                SCHEDULER.run_for(self.random.choice((0.1, 5.0, 100.0)))
                SCHEDULER.resume(process)
            case 2:
                SCHEDULER.wall_offset += self.random.choice((-1e6, -3600.0, 30.0, 3600.0, 1e7))
            case 3:
                DISK.fail(self.random.choice((0.0, 0.1, 0.5, 1.0)))
            case 4:
                MEMORY.free = self.random.choice((10_000, 1_000_000, 1 << 33))
                self._harm_open_requests()
            case 5:
                self._cut_power()
            case 6:
                REGISTRY.fail(self.random.choice((0.0, 0.1, 0.5, 1.0)))
            case 7:
                REGISTRY.publish()
            case _:
                SCHEDULER.run_for(self.random.choice((0.5, 40.0, 400.0)))

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
        elif not (status in client.refusals or (status in _FAULTS and self._may_fail(asked))):
            raise WorldError(f"{asked.ask or client.path}: {status} {bytes(client.reply)[:300]!r}")

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

    def _finish(self) -> None:
        """Wait until all requests are over, or stop the server at once; check that nothing is left."""
        if self.random.random() < 0.8:
            SCHEDULER.run_until(self._are_over, _PATIENCE, "a request")
            self._check()
            SCHEDULER.run_for(3.0)  # cancelled calls end
            check_idle_server(self.app.state.services)
            for worker in Popen.running.values():
                if worker.engine is not None:
                    check_idle_engine(worker.engine)
        self._harm_open_requests()
        self._in_loop(self.stopped.set)
        SCHEDULER.run_until(lambda: self.app is None, 120, "the end of the server")
        SCHEDULER.run_until(lambda: not SCHEDULER.threads, 120, "the end of threads")
        self._check()
        DISK.fail(0.0)
        check_store(Store(self.folder), self.copies | self.pulled, self.blobs)

    def _are_over(self) -> bool:
        return all(each.client.is_over for each in self.asked)


async def _end_tasks() -> None:
    """Cancel all other tasks, as `asyncio.run` does."""
    others = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
