"""Loading a model into a worker, for as long as the worker makes progress."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

from chaski.errors import ChaskiError, WorkerError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.messages import Info
from chaski.runner.loading.sizes import usual_context
from chaski.server.models.loaded import QUEUED_BESIDE, LoadedModel, ModelNeeds, OpenWorker
from chaski.server.models.loaded_adapters import LoadedAdapters
from chaski.server.models.loaded_states import LoadedStates
from chaski.server.models.queue import FairQueue
from chaski.server.settings import Settings

__all__ = ["load_model"]

_log = logging.getLogger(__name__)


async def load_model(
    needs: ModelNeeds, parallel: int, claimed: int, settings: Settings, open_worker: OpenWorker
) -> LoadedModel:
    """Load a model with `parallel` places, or with fewer where memory decides about its context.

    claimed: bytes of memory that other models have reserved and not taken yet

    Raises the errors of its worker, and WorkerError.
    """
    share = _LoadedShare()
    worker = open_worker(needs.path, progress=share, **_options(needs, parallel, claimed, settings))
    model = worker.asynchronous()
    try:
        info = await _wait_while_it_progresses(model, share, settings.load_timeout)
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(worker.close))
        if isinstance(error, ChaskiError):
            # The worker knows only the file of the model, but the client knows its name.
            raise type(error)(str(error).replace(str(needs.path), needs.name)) from None
        raise
    parallel = info.parallel or parallel
    why = f" ({info.context_reason})" if info.context_reason else ""
    _log.info("loaded %s: context %d%s, %d in parallel", needs.name, info.context, why, parallel)
    if info.engine_reason:
        _log.info("llama.cpp computes %s: %s", needs.name, info.engine_reason)
    return LoadedModel(
        path=needs.path,
        name=needs.name,
        worker=worker,
        model=model,
        info=info,
        parallel=parallel,
        adapters=LoadedAdapters(model),
        states=LoadedStates(model),
        queue=FairQueue(parallel + QUEUED_BESIDE, settings.max_queue),
        keep_alive=settings.keep_alive if needs.keep_alive is None else needs.keep_alive,
        projector=needs.projector,
        draft=needs.draft,
        placing=needs.placing,
        used_at=time.time(),
    )


def _options(needs: ModelNeeds, parallel: int, claimed: int, settings: Settings) -> dict[str, Any]:
    """Return the options of `chaski.load`."""
    context = needs.context or needs.usual_context
    options: dict[str, Any] = {
        "context": context,
        "threads": needs.threads,
        "parallel": parallel,
        "engine": needs.engine,
        **needs.placing,
    }
    if context is None and settings.cluster is not None:
        # The machines of a cluster have different memories, but all replicas answer alike.
        options["context"] = settings.context or usual_context(needs.trained, needs.needed_context)
    elif context is None and settings.context is None:
        options["needed_context"] = needs.needed_context
        if settings.parallel is None:
            options |= {"parallel": None, "most_parallel": parallel}
    if settings.cluster is None and claimed:
        options["claimed_memory"] = claimed
    if needs.projector is not None:
        options["projector"] = str(needs.projector)
    if needs.draft is not None:
        options["draft"] = str(needs.draft)
    return options


class _LoadedShare:
    """The fraction of a model that is loaded, which another thread sets."""

    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self, value: float) -> None:
        self.value = value


async def _wait_while_it_progresses(model: AsyncModel, share: _LoadedShare, stall: float) -> Info:
    """Wait until a model is loaded. Raises WorkerError if it makes no progress for `stall` seconds."""
    loading = asyncio.create_task(model.info())
    try:
        while True:
            before = share.value
            await asyncio.wait((loading,), timeout=None if stall == math.inf else stall)
            if loading.done():
                return loading.result()
            if share.value == before:
                raise WorkerError(f"timed out waiting for the model to load: no progress for {stall:.0f} s")
    finally:
        loading.cancel()
