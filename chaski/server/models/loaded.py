"""`LoadedModel`: a model in memory with its users. `ModelNeeds`: a request's requirements on its model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from chaski.errors import ChaskiError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.messages import Info
from chaski.server.models.adapter_table import ChosenAdapter
from chaski.server.models.loaded_adapters import LoadedAdapters
from chaski.server.models.loaded_states import LoadedStates
from chaski.server.models.queue import FairQueue

__all__ = ["QUEUED_BESIDE", "Lendable", "LoadedModel", "ModelNeeds", "OpenWorker", "WorkerLike"]


QUEUED_BESIDE = 2
"""Requests sent to a worker in addition to its places, so that no place is empty between two requests."""

# Longest wait for a description, in seconds.
_MOMENT = 1.0


class WorkerLike(Protocol):
    """The part of `Worker`, or of `ClusterModel`, that the server uses."""

    @property
    def is_running(self) -> bool: ...

    @property
    def num_replicas(self) -> int: ...

    def asynchronous(self) -> AsyncModel: ...

    def close(self) -> None: ...


@runtime_checkable
class Lendable(Protocol):
    """A worker whose place a cluster may ask for, such as `ClusterModel`."""

    def lend(self, idle_seconds: Callable[[], float | None], unload: Callable[[], None]) -> None: ...


OpenWorker = Callable[..., WorkerLike]
"""Function that starts a worker. It takes the path of a model, `progress`, and options of `chaski.load`."""


class ModelNeeds(Struct, frozen=True, kw_only=True):
    """The requirements of a request on its model. None leaves the choice to the server.

    path        file of the weights; names with the same file share one loaded model
    name        name for logs and messages
    projector   file of the image encoder, if the model's own file contains none
    draft       file of the draft model
    adapters    adapters to apply
    context     number of tokens that a sequence must be able to hold
    usual_context   context length for loading if no request asks for one
    needed_context  number of tokens that a sequence should be able to hold if no context is set
    trained     context that the model was trained with; 0 if unknown
    engine      the engine that must compute the model
    placing     the placement on devices, as far as requested: options of `chaski.load`
    keep_alive  seconds for which the model stays in memory after this request
    """

    path: Path
    name: str
    projector: Path | None = None
    draft: Path | None = None
    adapters: Sequence[ChosenAdapter] = ()
    context: int | None = None
    usual_context: int | None = None
    needed_context: int | None = None
    trained: int = 0
    threads: int | None = None
    engine: str | None = None
    placing: Mapping[str, Any] = field(default_factory=dict)
    keep_alive: float | None = None


class LoadedModel(Struct, eq=False):
    """A model in memory.

    is_longest  no longer context could be loaded for a request that needed one
    users     number of requests that use it or wait for a place in it
    used_at   time when the last request ended, as returned by `time.time`
    opening   the tokens that begin every text; None until they are first requested
    closing   the end of its worker, once it has begun
    """

    path: Path
    name: str
    worker: WorkerLike
    model: AsyncModel
    info: Info
    parallel: int
    queue: FairQueue
    adapters: LoadedAdapters
    states: LoadedStates
    keep_alive: float
    projector: Path | None = None
    draft: Path | None = None
    placing: Mapping[str, Any] = field(default_factory=dict)
    is_longest: bool = False
    users: int = 0
    used_at: float = 0.0
    is_leaving: bool = False
    opening: list[int] | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    closing: asyncio.Task[None] | None = None

    @property
    def expires_at(self) -> float:
        """The time at which the model is unloaded unless another request arrives."""
        return self.used_at + self.keep_alive

    async def refresh(self) -> None:
        """Update the description, if the worker answers within `_MOMENT` seconds."""
        if self.worker.is_running:
            with suppress(ChaskiError, TimeoutError):
                self.info = await asyncio.wait_for(self.model.info(), _MOMENT)

    def suits(self, needs: ModelNeeds) -> bool:
        """Return whether another request can use the model."""
        return not self.is_leaving and self.is_enough(needs)

    def is_enough(self, needs: ModelNeeds) -> bool:
        """Return whether engine, encoder, draft and GPUs are as needed, and the context is long enough."""
        if needs.engine not in (None, self.info.engine):
            return False
        if needs.projector not in (None, self.projector) or needs.draft not in (None, self.draft):
            return False
        if any(self.placing.get(name) != number for name, number in needs.placing.items()):
            return False
        if needs.needed_context is not None and self.can_grow and needs.needed_context > self.info.context:
            return False
        return needs.context is None or needs.context <= self.info.context

    @property
    def can_grow(self) -> bool:
        """Return whether loading the model again may give it a longer context."""
        return not self.is_longest and self.info.context < self.info.max_context

    def fit_queue(self) -> None:
        """Adapt the number of places to the number of replicas."""
        self.queue.resize(self.worker.num_replicas * (self.parallel + QUEUED_BESIDE))

    def claim(self, count: int) -> None:
        """Add `count` users."""
        self.users += count
        self.idle.clear()
        if self.timer is not None:
            self.timer.cancel()
