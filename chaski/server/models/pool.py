"""`ModelPool`: load models, give requests places in them, and unload models when memory is needed.

The server does not guess whether a model fits. A worker computes the memory that it needs before it allocates
any, and raises OutOfMemoryError if the model does not fit. The pool then unloads the least recently used
model and tries again. It loads one model at a time on this machine, and any number at a time on a cluster,
which plans itself where they have room. Requests to loaded models never wait for this.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chaski.errors import BusyError, ChaskiError, NoNodeError, OutOfMemoryError, WorkerError, closed
from chaski.server.models.kept_prefixes import KeptPrefixes
from chaski.server.models.loaded import Lendable, LoadedModel, ModelNeeds, OpenWorker
from chaski.server.models.loading import load_model
from chaski.server.settings import Settings

__all__ = ["ModelPool"]


@dataclass(slots=True, eq=False)
class _Load:
    """A model that is being loaded, with the number of requests that wait for it.

    loaded: the model as soon as it is loaded, claimed for each of these requests
    """

    waiting: int = 0
    loaded: LoadedModel | None = None
    task: asyncio.Task[LoadedModel] = field(init=False)


class ModelPool:
    """The models in memory. Use it in one event loop only."""

    def __init__(self, settings: Settings, open_worker: OpenWorker) -> None:
        self._settings = settings
        self._open_worker = open_worker
        self._loaded: dict[Path, LoadedModel] = {}
        self._loads: dict[Path, _Load] = {}
        # Loads on this machine take turns, because each measures the memory that is free.
        turns = asyncio.Lock() if settings.cluster is None else nullcontext()
        self._loading: AbstractAsyncContextManager[None] = turns
        self._making_place = asyncio.Lock()
        self._num_loading = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def loaded(self) -> list[LoadedModel]:
        """The loaded models, the most recently used one first."""
        found = [loaded for loaded in self._loaded.values() if loaded.closing is None]
        return sorted(found, key=lambda loaded: loaded.used_at, reverse=True)

    async def refreshed(self) -> list[LoadedModel]:
        """Return the loaded models, with new descriptions of those whose workers answer in time."""
        loaded = self.loaded
        await asyncio.gather(*(each.refresh() for each in loaded))
        return loaded

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a model to be loaded."""
        return sum(load.waiting for load in self._loads.values())

    @asynccontextmanager
    async def use(
        self, needs: ModelNeeds, client: str = "", claimed: Callable[[], None] = lambda: None
    ) -> AsyncIterator[LoadedModel]:
        """Give a request a place in a model, and load the model first if necessary.

        `claimed` is called when the model is in memory, before the request waits for its place.

        Raises BusyError if too many requests wait, OutOfMemoryError, and the errors of loading.
        """
        loaded = await self._claim(needs)
        claimed()
        try:
            loaded.fit_queue()
            await loaded.queue.enter(client)
            try:
                await loaded.adapters.require(needs.adapters)
                yield loaded
            finally:
                loaded.queue.leave()
                loaded.fit_queue()
        except WorkerError:
            if not loaded.worker.is_running:
                self._start(self._unload(loaded))
            raise
        finally:
            self._release(loaded, needs.keep_alive)

    async def expire(self, path: Path) -> None:
        """Unload a model as soon as its current requests are answered."""
        loaded = self._loaded.get(path)
        if loaded is not None:
            loaded.keep_alive = 0.0
            if not loaded.users and path not in self._loads:
                await self._unload(loaded)

    async def close(self) -> None:
        """Unload all models now. Requests for them fail with ClosedError."""
        self._is_closed = True
        tasks = [*(load.task for load in self._loads.values()), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [loaded.worker for loaded in self._loaded.values()]
        self._loaded.clear()
        await asyncio.gather(*(asyncio.to_thread(worker.close) for worker in workers))

    async def _claim(self, needs: ModelNeeds) -> LoadedModel:
        """Return the model with one more user, so that it is not unloaded in the meantime."""
        while True:
            loaded = self._loaded.get(needs.path)
            if loaded is not None and loaded.suits(needs):
                loaded.claim(1)
                return loaded
            loaded = await self._wait_for_load(needs)
            if loaded.is_enough(needs):
                return loaded
            self._release(loaded)

    async def _wait_for_load(self, needs: ModelNeeds) -> LoadedModel:
        """Load a model and claim it. Requests for the same model wait for the same load."""
        if self._is_closed:
            raise closed()
        if self.waiting >= self._settings.max_queue:
            raise BusyError("server busy, please try again.  maximum pending requests exceeded")
        load = self._loads.get(needs.path)
        if load is None:
            load = self._loads[needs.path] = _Load()
            load.task = asyncio.create_task(self._run_load(needs, load))
            # All waiting requests get the error. If none waits, reading it keeps asyncio from logging it.
            load.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        load.waiting += 1
        try:
            return await asyncio.shield(load.task)
        except asyncio.CancelledError:
            if load.loaded is not None:
                self._release(load.loaded)
            if self._is_closed and load.task.cancelled():
                raise closed() from None
            raise
        finally:
            load.waiting -= 1

    def _release(self, loaded: LoadedModel, keep_alive: float | None = None) -> None:
        loaded.users -= 1
        loaded.used_at = time.time()
        if keep_alive is not None:
            loaded.keep_alive = keep_alive
        if not loaded.users:
            self._start_timer(loaded)

    def _start_timer(self, loaded: LoadedModel) -> None:
        """Unload a model without users after its `keep_alive`; `close` unloads all others."""
        loaded.idle.set()
        if self._is_closed:
            return
        if loaded.keep_alive < math.inf and not loaded.is_leaving:
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_later(loaded.keep_alive, lambda: self._start(self._unload(loaded)))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unload(self, loaded: LoadedModel) -> None:
        """Unload a model that no request uses. The load of another model does not delay this."""
        if not loaded.users or not loaded.worker.is_running:
            await self._remove(loaded)

    async def _remove(self, loaded: LoadedModel) -> None:
        """Give a model no more requests, and unload it when its current requests are answered."""
        await self._retire(loaded)
        await self._close(loaded)

    async def _retire(self, loaded: LoadedModel) -> None:
        """Give a model no more requests, and wait until its current ones are answered."""
        loaded.is_leaving = True
        if loaded.timer is not None:
            loaded.timer.cancel()
        if loaded.users and loaded.worker.is_running:
            await loaded.idle.wait()

    async def _close(self, loaded: LoadedModel) -> None:
        """End the worker. Its memory is free afterwards, also if somebody else has begun to end it."""
        if loaded.closing is None:
            loaded.closing = asyncio.create_task(asyncio.to_thread(loaded.worker.close))
        await asyncio.shield(loaded.closing)
        if self._loaded.get(loaded.path) is loaded:
            del self._loaded[loaded.path]

    async def _run_load(self, needs: ModelNeeds, load: _Load) -> LoadedModel:
        try:
            async with self._loading:
                loaded = await self._made_available(needs)
                # Claim the model for all waiting requests, before another load could unload it.
                load.loaded = loaded
                if load.waiting:
                    loaded.claim(load.waiting)
                else:
                    self._start_timer(loaded)
                return loaded
        finally:
            del self._loads[needs.path]

    async def _made_available(self, needs: ModelNeeds) -> LoadedModel:
        present, kept = self._loaded.get(needs.path), None
        if present is not None:
            if present.suits(needs):
                return present
            await self._retire(present)
            kept = await KeptPrefixes.of(present)
            await self._close(present)
        try:
            async with self._making_place:
                await self._make_place(needs.path)
                self._num_loading += 1
            try:
                loaded = self._loaded[needs.path] = await self._load(needs)
            finally:
                self._num_loading -= 1
            self._lend(loaded)
            if present is not None and needs.keep_alive is None:
                loaded.keep_alive = present.keep_alive
            if kept is not None:
                await kept.give(loaded)
            return loaded
        finally:
            if kept is not None:
                kept.close()

    async def _make_place(self, path: Path) -> None:
        """Unload models until one more may be loaded."""
        while len(self._loaded) + self._num_loading >= self._settings.max_loaded:
            if self._loaded:
                await self._remove(self._next_to_go())
            else:
                others = [load.task for other, load in self._loads.items() if other != path]
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)

    def _lend(self, loaded: LoadedModel) -> None:
        """Let the cluster ask for the place of an idle model."""
        if isinstance(loaded.worker, Lendable):
            loop = asyncio.get_running_loop()

            def unload() -> None:
                loop.call_soon_threadsafe(self._give_place, loaded)

            loaded.worker.lend(lambda: None if loaded.users else time.time() - loaded.used_at, unload)

    def _give_place(self, loaded: LoadedModel) -> None:
        """Unload an idle model whose place another one needs."""
        if not loaded.users and loaded.closing is None:
            self._start(self._unload(loaded))

    def _next_to_go(self) -> LoadedModel:
        """Return the model to unload: one that ends already, else the least recently used one.

        Models that no request uses go first.
        """
        return min(
            self._loaded.values(),
            key=lambda loaded: (loaded.closing is None, loaded.users > 0, loaded.used_at),
        )

    async def _load(self, needs: ModelNeeds) -> LoadedModel:
        """Load a model, and unload only as many others as necessary."""
        parallel = self._settings.parallel or self._settings.most_parallel
        needed = needs.needed_context
        while True:
            claimed = await self._claimed()
            try:
                loaded = await load_model(needs, parallel, claimed, self._settings, self._open_worker)
            except OutOfMemoryError as error:
                # No other model is in the way of one that fits on no node.
                if self._loaded and not isinstance(error, NoNodeError):
                    await self._remove(self._next_to_go())
                elif self._settings.parallel is None and parallel > 1:
                    parallel //= 2
                elif needs.needed_context is not None:
                    needs = replace(needs, needed_context=None)
                else:
                    raise
                continue
            loaded.is_longest = needed is not None and loaded.info.context < needed
            return loaded

    async def _claimed(self) -> int:
        """Return the bytes of memory that loaded models have reserved on this machine and not taken yet."""
        if self._settings.cluster is not None:
            return 0
        for other in self.loaded:
            # Memory that another model is about to allocate is not free. Its own requests get its errors.
            if other.worker.is_running:
                with suppress(ChaskiError):
                    other.info = await other.model.info(wait_loaded=True)
        return sum(other.info.unused_bytes for other in self.loaded)
