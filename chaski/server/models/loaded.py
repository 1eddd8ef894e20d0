"""`LoadedModel`: a model in memory with its users. `ModelNeeds`: what a request asks of its model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from chaski.errors import ChaskiError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.messages import Info
from chaski.server.models.adapter_table import ChosenAdapter
from chaski.server.models.loaded_adapters import LoadedAdapters
from chaski.server.models.loaded_states import LoadedStates
from chaski.server.models.queue import FairQueue

__all__ = ["QUEUED_BESIDE", "LoadedModel", "ModelNeeds", "OpenWorker", "WorkerLike"]


QUEUED_BESIDE = 2
"""Requests that are sent to a worker beyond its places, so that no place stays empty between two requests."""

# Seconds to wait for a description.
_MOMENT = 1.0


class WorkerLike(Protocol):
    """The part of `Worker`, or of `ClusterModel`, that the server uses."""

    @property
    def is_running(self) -> bool: ...

    @property
    def num_replicas(self) -> int: ...

    def asynchronous(self) -> AsyncModel: ...

    def close(self) -> None: ...


OpenWorker = Callable[..., WorkerLike]
"""Takes the path of a model, `progress`, and options of `chaski.load`."""


class ModelNeeds(Struct, frozen=True, kw_only=True):
    """The requirements of a request on its model. None leaves the choice to the server.

    path        the file of the weights; names that share it share what is loaded
    name        the name that log and messages show
    projector   the file of its image encoder, if the model's own file has none
    draft       the file of its draft model
    adapters    what it is computed with besides
    context     tokens that a sequence must be able to hold
    usual_context   the context to load it with where no request asks for one
    engine      the engine that must compute it
    gpus        how many layers are on GPUs and on which, as far as it is asked for: `num_gpu`, `main_gpu`
    keep_alive  seconds that it stays in memory after this request
    """

    path: Path
    name: str
    projector: Path | None = None
    draft: Path | None = None
    adapters: Sequence[ChosenAdapter] = ()
    context: int | None = None
    usual_context: int | None = None
    threads: int | None = None
    engine: str | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    keep_alive: float | None = None


class LoadedModel(Struct, eq=False):
    """A model in memory.

    users     requests that use it or wait for a place in it
    used_at   when the last request ended, as of `time.time`
    opening   the tokens that begin every text; None until somebody asks for them
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
    gpus: Mapping[str, int] = field(default_factory=dict)
    users: int = 0
    used_at: float = 0.0
    is_leaving: bool = False
    opening: list[int] | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    @property
    def expires_at(self) -> float:
        """The time at which it is unloaded unless another request comes."""
        return self.used_at + self.keep_alive

    async def refresh(self) -> None:
        """Ask for its description, and wait for that only a moment."""
        if self.worker.is_running:
            with suppress(ChaskiError, TimeoutError):
                self.info = await asyncio.wait_for(self.model.info(), _MOMENT)

    def suits(self, needs: ModelNeeds) -> bool:
        """Return whether a further request can use it."""
        return not self.is_leaving and self.is_enough(needs)

    def is_enough(self, needs: ModelNeeds) -> bool:
        """Return whether engine, encoder, draft and GPUs are the needed ones, and its context suffices."""
        if needs.engine not in (None, self.info.engine):
            return False
        if needs.projector not in (None, self.projector) or needs.draft not in (None, self.draft):
            return False
        if any(self.gpus.get(name) != number for name, number in needs.gpus.items()):
            return False
        return needs.context is None or needs.context <= self.info.context

    def fit_queue(self) -> None:
        """Let as many requests go on as there are replicas for."""
        self.queue.resize(self.worker.num_replicas * (self.parallel + QUEUED_BESIDE))

    def claim(self, count: int) -> None:
        """Note further users."""
        self.users += count
        self.idle.clear()
        if self.timer is not None:
            self.timer.cancel()
