"""The machines of a cluster: new replicas in place of those that run, here or elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from chaski.cluster.connection import Cluster
from chaski.cluster.model import ClusterModel
from chaski.errors import ClusterError, ModelNotFoundError, UnsupportedError
from chaski.server.fields.reader import Fields
from chaski.server.handlers.progress import progress
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.models.pool import ModelPool
from chaski.store.progress import StoreProgress

__all__ = ["drain", "replace"]

_PAUSE = 1.0


async def replace(http: HTTPRequest) -> Reply:
    """Put new replicas of a model in the place of all that run, a few at a time; no request fails."""
    label = Fields(http.body).text("model", "name")
    _cluster(http)
    found, _ = await asyncio.to_thread(http.services.catalog.look_up, label)
    for loaded in http.services.models.loaded:
        if loaded.path == found.model.path and isinstance(loaded.worker, ClusterModel):
            return await progress(http, _steps(loaded.worker))
    raise ModelNotFoundError(
        f"no replica of {found.name.short} runs; the next request for it starts new ones"
    )


async def drain(http: HTTPRequest) -> Reply:
    """Take a node out of use: its replicas end their answers, and others take their place elsewhere."""
    name = Fields(http.body).text("node")
    node = await asyncio.to_thread(_cluster(http).drain, name)
    return await progress(http, _leaving(http.services.models, node.label))


async def _leaving(models: ModelPool, label: str) -> AsyncGenerator[StoreProgress, None]:
    """Wait until no replica, and no shard of one, is left on a node."""
    while number := sum(
        label in (replica.node, *(node for node, _ in replica.shards))
        for loaded in models.loaded
        if isinstance(loaded.worker, ClusterModel)
        for replica in loaded.worker.replicas()
    ):
        yield StoreProgress(f"replicas that are left on {label}: {number}")
        await asyncio.sleep(_PAUSE)
    yield StoreProgress("success")


def _cluster(http: HTTPRequest) -> Cluster:
    """Raises UnsupportedError where the server has none."""
    cluster: Cluster | None = http.request.app.state.cluster
    if cluster is None:
        raise UnsupportedError(
            "the server computes by itself; chaski serve --cluster starts one with a cluster"
        )
    return cluster


async def _steps(model: ClusterModel) -> AsyncGenerator[StoreProgress, None]:
    generation = model.replace()
    while model.is_running:
        now = model.replacement(generation)
        if now.problem is not None:
            raise ClusterError(
                f"a new replica cannot load the model: {now.problem}; {now.num_old} old ones go on, "
                "and it may be tried again"
            )
        if now.is_done:
            break
        yield StoreProgress(f"{now.num_new} of {now.num_new + now.num_old} replicas are new")
        await asyncio.sleep(_PAUSE)
    yield StoreProgress("success")
