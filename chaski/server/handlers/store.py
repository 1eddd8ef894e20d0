"""Ollama's API for models: list, describe, copy, delete, pull, push and create them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response

from chaski.cluster.connection import Cluster
from chaski.errors import ChaskiError, ModelNotFoundError, OptionError, UnsupportedError
from chaski.ml.backend import HOST
from chaski.names import NATIVE, Digest, ModelName
from chaski.pasted import pasted_name
from chaski.server.dialects.recipes import read_recipe
from chaski.server.fields.reader import Fields
from chaski.server.handlers.progress import progress, steps
from chaski.server.http.api import OLLAMA
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.http.problems import problem_of
from chaski.server.models.creation import create_model
from chaski.server.models.descriptions import describe, running
from chaski.server.models.estimates import Estimates
from chaski.server.services import Services
from chaski.store.create import missing_sources
from chaski.store.http import Access
from chaski.store.listing import listed
from chaski.store.progress import StoreProgress
from chaski.store.pull import pull as pull_model
from chaski.store.push import push as push_model

__all__ = ["copy", "create", "delete", "has_blob", "memory", "ps", "pull", "push", "put_blob", "show", "tags"]

# Copilot's menu shows a model as `general.basename`, which several models of a store may share.
_COPILOT = "GitHubCopilotChat/"


async def tags(http: HTTPRequest) -> Reply:
    """List the models of the store, the newest first."""
    catalog = http.services.catalog
    catalog.forget_deleted()  # other programs delete models too
    return {"models": await asyncio.to_thread(listed, catalog.store, catalog.summary)}


async def ps(http: HTTPRequest) -> Reply:
    """List the models in memory, and the nodes and applications of a cluster."""
    services = http.services
    loaded = await services.models.refreshed()
    shown: dict[str, Any] = {"models": await asyncio.to_thread(running, services.catalog, loaded)}
    cluster: Cluster | None = http.request.app.state.cluster
    if cluster is not None:
        shown["nodes"] = [{"label": node.label, **to_builtins(node)} for node in cluster.nodes()]
        shown["applications"] = to_builtins(cluster.applications())
    return shown


async def show(http: HTTPRequest) -> Reply:
    """Describe a model in full."""
    fields = Fields(http.body)
    label, is_verbose = fields.text("model", "name"), fields.flag("verbose", False)
    shown = await asyncio.to_thread(describe, http.services.catalog, label, is_verbose)
    if http.request.headers.get("user-agent", "").startswith(_COPILOT):
        shown["model_info"]["general.basename"] = label
    return shown


async def memory(http: HTTPRequest) -> Reply:
    """Estimate the memory that a model would take, without loading it."""
    fields, services = Fields(http.body), http.services
    found, info = await asyncio.to_thread(services.catalog.look_up, fields.text("model", "name"))
    if info.engine != NATIVE:
        raise UnsupportedError(
            f"{info.engine} computes {found.name.shown}, and reports its memory only after loading it"
        )
    context, parallel = fields.integer("num_ctx", None), fields.integer("parallel", None)
    if context is not None:
        context = min(context, info.trained_context or context)
    parallel = services.settings.parallel if parallel is None else parallel
    freeable = 0
    for loaded in services.models.loaded:
        held = loaded.info.memory.on(HOST)
        # The model's own weights would be needed again.
        freeable += held.total - (held.weights if loaded.path == found.model.path else 0)
    estimates: Estimates = services.estimates
    root, most = services.catalog.store.root, services.settings.most_parallel
    return await estimates.ask(root, found.name, context, parallel, most, freeable)


async def copy(http: HTTPRequest) -> Reply:
    """Give a model a second name."""
    fields = Fields(http.body)
    source, target = (_name(fields.text(each), each) for each in ("source", "destination"))
    try:
        await asyncio.to_thread(http.services.catalog.store.copy, source, target)
    except ModelNotFoundError:
        raise ModelNotFoundError(f'model "{fields.text("source"):.200}" not found') from None
    return Response()


async def delete(http: HTTPRequest) -> Reply:
    """Delete a model from the store. If it is in memory, it is unloaded after its running requests."""
    label = Fields(http.body).text("model", "name")
    name, services = _name(label), http.services
    store = services.catalog.store
    if store.locate(name) is None:
        raise ModelNotFoundError(f"model '{label:.200}' not found")
    with suppress(ChaskiError):  # a damaged model can be deleted too
        await services.chat.unload(label)
    await asyncio.to_thread(store.remove, name)
    services.catalog.forget_deleted()
    return Response()


async def pull(http: HTTPRequest) -> Reply:
    """Download a model from its registry. Its name may be a link, or a command such as `ollama run NAME`."""
    fields = Fields(http.body)
    label = fields.text("model", "name")
    name, access = _name(pasted_name(label) if label else label), _access(fields, http.services)
    services = http.services
    work = partial(pull_model, services.catalog.store, name, access)
    return await progress(http, steps(services.transfers, work))


async def push(http: HTTPRequest) -> Reply:
    """Upload a model to its registry."""
    fields = Fields(http.body)
    name, access = _name(fields.text("model", "name")), _access(fields, http.services)
    services = http.services
    work = partial(push_model, services.catalog.store, name, access)
    return await progress(http, steps(services.transfers, work))


async def create(http: HTTPRequest) -> Reply:
    """Create a model from other models or from blobs."""
    fields = Fields(http.body)
    store, access = http.services.catalog.store, _access(Fields({}), http.services)
    try:
        name = ModelName.parse(fields.text("model", "name"))
    except OptionError:
        raise OptionError("invalid model name") from None
    recipe = read_recipe(fields)
    missing = await asyncio.to_thread(missing_sources, store, recipe)
    pulls = [partial(pull_model, store, source, access) for source in missing]
    return await progress(http, _created(http, name, pulls))


async def has_blob(request: Request) -> Response:
    """Report whether a blob is in the store."""
    try:
        digest = Digest.parse(request.path_params["digest"])
    except OptionError as error:
        return OLLAMA.refusal(problem_of(error))
    size = request.app.state.services.catalog.store.blobs.size(digest)
    return Response(status_code=404 if size is None else 200)


async def put_blob(request: Request) -> Response:
    """Add a blob, whose name must be the digest of its bytes. Some space of the disk stays free."""
    services: Services = request.app.state.services
    blobs = services.catalog.store.blobs
    try:
        digest = Digest.parse(request.path_params["digest"])
        if blobs.size(digest) is not None:
            # Without `Expect`, the client is sending already. Unread bytes would reset its connection.
            if "expect" not in request.headers:
                await services.uploads.discard(request.receive)
            return Response(status_code=200)
        await services.uploads.receive(blobs, digest, request.receive)
    except Exception as error:
        return OLLAMA.refusal(problem_of(error))
    return Response(status_code=201)


async def _created(
    http: HTTPRequest, name: ModelName, pulls: Iterable[partial[Generator[StoreProgress, None, None]]]
) -> AsyncGenerator[StoreProgress, None]:
    """Pull the missing sources of a model, then create it as soon as one of the slots for this is free."""
    services, root = http.services, http.services.catalog.store.root
    for pull in pulls:
        async with aclosing(steps(services.transfers, pull)) as pulled:
            async for step in pulled:
                yield step
    async with services.creations, aclosing(create_model(root, name, http.body)) as made:
        async for step in made:
            yield step


def _access(fields: Fields, services: Services) -> Access:
    """Return how to reach registries: private ones only if the settings name them."""
    return Access(
        insecure=fields.flag("insecure", False),
        private_hosts=services.settings.private_registries,
        username=fields.text_or_none("username"),
        password=fields.text_or_none("password"),
    )


def _name(label: str, what: str = "name") -> ModelName:
    if not label:
        raise OptionError("model is required")
    try:
        return ModelName.parse(label)
    except OptionError:
        raise OptionError(f'{what} "{label:.200}" is invalid') from None
