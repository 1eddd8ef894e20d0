"""Administration of a cluster: replace replicas, take nodes out of use, and remove orphans."""

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

__all__ = ["drain", "remove", "replace"]

_PAUSE = 1.0


async def replace(http: HTTPRequest) -> Reply:
    """Replace all running replicas of a model with new ones, a few at a time. No request fails."""
    label = Fields(http.body).text("model", "name")
    _cluster(http)
    found, _ = await asyncio.to_thread(http.services.catalog.look_up, label)
    for loaded in http.services.models.loaded:
        if loaded.path == found.model.path and isinstance(loaded.worker, ClusterModel):
            return await progress(http, _steps(loaded.worker))
    raise ModelNotFoundError(
        f"no replica of {found.name.shown} is running; the next request for it starts new ones"
    )


async def drain(http: HTTPRequest) -> Reply:
    """Take a node out of use. Its replicas finish their answers, and other nodes start new replicas."""
    name = Fields(http.body).text("node")
    node = await asyncio.to_thread(_cluster(http).drain, name)
    return await progress(http, _leaving(http.services.models, node.label))


async def remove(http: HTTPRequest) -> Reply:
    """Delete an application that no server wants. It ends within some seconds."""
    name = Fields(http.body).text("application")
    await asyncio.to_thread(_cluster(http).remove, name)
    return {"status": "success"}


async def _leaving(models: ModelPool, label: str) -> AsyncGenerator[StoreProgress, None]:
    """Wait until a node runs no replica and no shard of one."""
    while number := sum(
        label in (replica.node, *(node for node, _ in replica.shards))
        for loaded in models.loaded
        if isinstance(loaded.worker, ClusterModel)
        for replica in loaded.worker.replicas()
    ):
        yield StoreProgress(f"remaining replicas on {label}: {number}")
        await asyncio.sleep(_PAUSE)
    yield StoreProgress("success")


def _cluster(http: HTTPRequest) -> Cluster:
    """Return the cluster. Raises UnsupportedError if the server has none."""
    cluster: Cluster | None = http.request.app.state.cluster
    if cluster is None:
        raise UnsupportedError("this server has no cluster; chaski serve --cluster starts a server with one")
    return cluster


async def _steps(model: ClusterModel) -> AsyncGenerator[StoreProgress, None]:
    generation = model.replace()
    while model.is_running:
        now = model.replacement(generation)
        if now.problem is not None:
            raise ClusterError(
                f"a new replica cannot load the model: {now.problem}; {now.num_old} old replicas "
                "continue, and you can try again"
            )
        if now.is_done:
            break
        yield StoreProgress(f"{now.num_new} of {now.num_new + now.num_old} replicas are new")
        await asyncio.sleep(_PAUSE)
    yield StoreProgress("success")
