"""`Models`: which models are loaded, who may use them, and which one goes when memory is needed.

Whether a model fits is not guessed: its worker works out what it needs before it takes any of it, and refuses
with OutOfMemoryError. Then the model that was used the longest ago has to go, and loading is tried again.
One model is loaded or unloaded at a time; requests to those that are there never wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chaski.errors import BusyError, ChaskiError, OutOfMemoryError, WorkerError
from chaski.runner.asynchronous import AsyncModel
from chaski.runner.messages import Info
from chaski.server.models.queue import FairQueue
from chaski.server.settings import Settings

__all__ = ["Loaded", "Models", "Needs", "OpenWorker", "WorkerLike"]

_log = logging.getLogger(__name__)

_DEFAULT_PARALLEL = 4
# Requests that are handed to a worker beyond its places, so that none of those is empty for long.
_AHEAD = 2


class WorkerLike(Protocol):
    """What is needed of `chaski.runner.worker.Worker`."""

    @property
    def pid(self) -> int | None: ...

    def asynchronous(self) -> AsyncModel: ...

    def close(self) -> None: ...


OpenWorker = Callable[..., WorkerLike]
"""Takes the path of a model, `progress`, and options of `chaski.load`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a request wants of the model that answers it. None: as it comes.

    path        the file of the weights; names that share it share what is loaded
    name        for people
    projector   the file of its encoder of images, where that is another one
    draft       the file of the model that guesses for it
    context     tokens that a sequence must be able to hold
    usual_context   what it is loaded with where nobody asks for anything
    engine      who must compute it
    keep_alive  seconds that it stays after this request
    """

    path: Path
    name: str
    projector: Path | None = None
    draft: Path | None = None
    context: int | None = None
    usual_context: int | None = None
    threads: int | None = None
    engine: str | None = None
    keep_alive: float | None = None


@dataclass(slots=True, eq=False)
class Loaded:
    """A model in memory.

    users     requests that use it or wait to
    used_at   when the last one ended, as of `time.time`
    opening   the token that begins every text, if there is one; None while nobody has asked
    """

    path: Path
    name: str
    worker: WorkerLike
    model: AsyncModel
    info: Info
    parallel: int
    queue: FairQueue
    keep_alive: float
    projector: Path | None = None
    draft: Path | None = None
    users: int = 0
    used_at: float = 0.0
    is_leaving: bool = False
    opening: list[int] | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    @property
    def expires_at(self) -> float:
        """When it goes unless somebody asks again."""
        return self.used_at + self.keep_alive

    def suits(self, needs: Needs) -> bool:
        """Whether a further request can have it."""
        return not self.is_leaving and self.is_enough(needs)

    def is_enough(self, needs: Needs) -> bool:
        """Whether engine, encoder and draft are the right ones, and its context is large enough.

        Never mind how much larger.
        """
        if needs.engine not in (None, self.info.engine):
            return False
        if needs.projector not in (None, self.projector) or needs.draft not in (None, self.draft):
            return False
        return needs.context is None or needs.context <= self.info.context

    def claim(self, count: int) -> None:
        """Note further users."""
        self.users += count
        self.idle.clear()
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True, eq=False)
class _Load:
    """A model that is being loaded, and how many wait for it. loaded: it is there, with a claim for each."""

    waiting: int = 0
    loaded: Loaded | None = None
    task: asyncio.Task[Loaded] = field(init=False)


class Models:
    """The models in memory. For one event loop."""

    def __init__(self, settings: Settings, open_worker: OpenWorker) -> None:
        self._settings = settings
        self._open_worker = open_worker
        self._loaded: dict[Path, Loaded] = {}
        self._loads: dict[Path, _Load] = {}
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> list[Loaded]:
        """Those that are there, the one that was used last at first."""
        return sorted(self._loaded.values(), key=lambda loaded: loaded.used_at, reverse=True)

    @property
    def waiting(self) -> int:
        """Requests that wait for a model to be loaded."""
        return sum(load.waiting for load in self._loads.values())

    @asynccontextmanager
    async def use(self, needs: Needs, client: str = "") -> AsyncIterator[Loaded]:
        """A model for one request: loaded if need be, and with a place in it.

        Raises BusyError where too many wait, OutOfMemoryError, or what loading raises.
        """
        loaded = await self._claim(needs)
        try:
            await loaded.queue.enter(client)
            try:
                yield loaded
            finally:
                loaded.queue.leave()
        except WorkerError:
            if loaded.worker.pid is None:
                self._start(self._unload(loaded))
            raise
        finally:
            self._release(loaded, needs.keep_alive)

    async def expire(self, path: Path) -> None:
        """Unload a model, when the requests that use it now are answered."""
        loaded = self._loaded.get(path)
        if loaded is not None:
            loaded.keep_alive = 0.0
            if not loaded.users:
                await self._unload(loaded)

    async def close(self) -> None:
        """Unload all, now."""
        tasks = [*(load.task for load in self._loads.values()), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [loaded.worker for loaded in self._loaded.values()]
        self._loaded.clear()
        await asyncio.gather(*(asyncio.to_thread(worker.close) for worker in workers))

    async def _claim(self, needs: Needs) -> Loaded:
        """The model with one more user, so that nobody takes it away."""
        while True:
            loaded = self._loaded.get(needs.path)
            if loaded is not None and loaded.suits(needs):
                loaded.claim(1)
                return loaded
            loaded = await self._wait_for_load(needs)
            if loaded.is_enough(needs):
                return loaded
            self._release(loaded)

    async def _wait_for_load(self, needs: Needs) -> Loaded:
        """Let it be loaded -> claimed. Who wants the same waits for the same load."""
        if self.waiting >= self._settings.max_queue:
            raise BusyError("server busy, please try again.  maximum pending requests exceeded")
        load = self._loads.get(needs.path)
        if load is None:
            load = self._loads[needs.path] = _Load()
            load.task = asyncio.create_task(self._bring(needs, load))
            # An error is known to all who wait; where nobody does any more, it is nobody's.
            load.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        load.waiting += 1
        try:
            return await asyncio.shield(load.task)
        except asyncio.CancelledError:
            if load.loaded is not None:
                self._release(load.loaded)
            raise
        finally:
            load.waiting -= 1

    def _release(self, loaded: Loaded, keep_alive: float | None = None) -> None:
        loaded.users -= 1
        loaded.used_at = time.time()
        if keep_alive is not None:
            loaded.keep_alive = keep_alive
        if not loaded.users:
            self._rest(loaded)

    def _rest(self, loaded: Loaded) -> None:
        """Nobody uses it: from now on its time runs."""
        loaded.idle.set()
        if loaded.keep_alive < math.inf and not loaded.is_leaving:
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_later(loaded.keep_alive, lambda: self._start(self._unload(loaded)))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unload(self, loaded: Loaded) -> None:
        async with self._changing:
            if not loaded.users or loaded.worker.pid is None:
                await self._remove(loaded)

    async def _remove(self, loaded: Loaded) -> None:
        """Take it away when its requests are answered; from now on it gets no more."""
        loaded.is_leaving = True
        if loaded.timer is not None:
            loaded.timer.cancel()
        if loaded.users and loaded.worker.pid is not None:
            await loaded.idle.wait()
        if self._loaded.get(loaded.path) is loaded:
            del self._loaded[loaded.path]
        await asyncio.to_thread(loaded.worker.close)

    async def _bring(self, needs: Needs, load: _Load) -> Loaded:
        try:
            async with self._changing:
                loaded = await self._made_available(needs)
                # Before anybody can take it away, it belongs to all who wait for it.
                load.loaded = loaded
                if load.waiting:
                    loaded.claim(load.waiting)
                else:
                    self._rest(loaded)
                return loaded
        finally:
            del self._loads[needs.path]

    async def _made_available(self, needs: Needs) -> Loaded:
        there = self._loaded.get(needs.path)
        if there is not None:
            if there.suits(needs):
                return there
            await self._remove(there)
        while len(self._loaded) >= self._settings.max_loaded:
            await self._remove(self._oldest())
        loaded = self._loaded[needs.path] = await self._load_somehow(needs)
        return loaded

    def _oldest(self) -> Loaded:
        """Who must go first: one that nobody uses if there is any, and that was used the longest ago."""
        return min(self._loaded.values(), key=lambda loaded: (loaded.users > 0, loaded.used_at))

    async def _load_somehow(self, needs: Needs) -> Loaded:
        """Load it, with as little taken from others as it needs."""
        for other in self.loaded:
            # What it has still to take is not there for this one. If it cannot, its own requests say so.
            if other.worker.pid is not None:
                with suppress(ChaskiError):
                    await other.model.info(wait_loaded=True)
        parallel = self._settings.parallel or _DEFAULT_PARALLEL
        while True:
            try:
                return await self._load(needs, parallel)
            except OutOfMemoryError:
                if self._loaded:
                    await self._remove(self._oldest())
                elif self._settings.parallel is None and parallel > 1:
                    parallel = 1
                else:
                    raise

    async def _load(self, needs: Needs, parallel: int) -> Loaded:
        progress = _Progress()
        options: dict[str, Any] = {
            "context": needs.context or needs.usual_context,
            "threads": needs.threads,
            "parallel": parallel,
            "engine": needs.engine,
        }
        if needs.projector is not None:
            options["projector"] = str(needs.projector)
        if needs.draft is not None:
            options["draft"] = str(needs.draft)
        worker = self._open_worker(needs.path, progress=progress, **options)
        model = worker.asynchronous()
        try:
            info = await _patiently(model, progress, self._settings.load_timeout)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(worker.close))
            if isinstance(error, ChaskiError):
                # Workers know files only; people know models.
                raise type(error)(str(error).replace(str(needs.path), needs.name)) from None
            raise
        _log.info("loaded %s: context %d, %d in parallel", needs.name, info.context, parallel)
        queue = FairQueue(parallel + _AHEAD, self._settings.max_queue)
        return Loaded(
            path=needs.path,
            name=needs.name,
            worker=worker,
            model=model,
            info=info,
            parallel=parallel,
            queue=queue,
            keep_alive=self._settings.keep_alive if needs.keep_alive is None else needs.keep_alive,
            projector=needs.projector,
            draft=needs.draft,
            used_at=time.time(),
        )


class _Progress:
    """The share of a model that is loaded; set by another thread."""

    def __init__(self) -> None:
        self.share = 0.0

    def __call__(self, share: float) -> None:
        self.share = share


async def _patiently(model: AsyncModel, progress: _Progress, stall: float) -> Info:
    """Wait for a model while it gets on. Raises WorkerError when for `stall` seconds it does not."""
    loading = asyncio.create_task(model.info())
    try:
        while True:
            before = progress.share
            await asyncio.wait((loading,), timeout=None if stall == math.inf else stall)
            if loading.done():
                return loading.result()
            if progress.share == before:
                raise WorkerError(f"timed out waiting for the model to load: no progress for {stall:.0f} s")
    finally:
        loading.cancel()
