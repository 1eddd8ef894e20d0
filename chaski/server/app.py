"""`create_app`: the list of routes, and the start and end of their services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from chaski.server.fields.routes import BODIES
from chaski.server.handlers import (
    adapters,
    answers,
    anthropic,
    batches,
    cluster,
    engines,
    general,
    live,
    native,
    openai,
    rerank,
    responses,
    states,
    store,
    web,
)
from chaski.server.http.access_log import AccessLog
from chaski.server.http.endpoint import Endpoint, Handler
from chaski.server.http.exchanges import Exchanges, Listener
from chaski.server.http.guard import Guard
from chaski.server.http.log_file import LogFile
from chaski.server.in_process import InProcess
from chaski.server.models.loaded import OpenWorker
from chaski.server.services import Services
from chaski.server.settings import Settings
from chaski.server.telemetry.otlp import open_export
from chaski.store.store import Store

if TYPE_CHECKING:
    from chaski.cluster.connection import Cluster
    from chaski.server.telemetry.span_export import SpanExport

__all__ = ["create_app"]

_REFUSALS = {404: "404 page not found", 405: "405 method not allowed"}


def create_app(
    settings: Settings, model_store: Store, open_worker: OpenWorker, cluster: Cluster | None = None
) -> Starlette:
    """Make the application. `open_worker` starts the process of a model. Raises MissingPackageError."""
    log = None if settings.access_log is None else LogFile(settings.access_log)
    spans = None if settings.traces is None else open_export(settings.traces)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        with log or nullcontext(), spans or nullcontext():
            services = Services.start(settings, model_store, open_worker, partial(InProcess, app))
            app.state.services = services
            app.state.cluster = cluster
            services.batches.resume()
            yield
            await services.close()

    return Starlette(
        routes=_routes(),
        middleware=[
            Middleware(Exchanges, listeners=_listeners(log, spans)),
            Middleware(Guard, settings=settings),
        ],
        exception_handlers={HTTPException: _refuse},
        lifespan=life,
    )


def _listeners(log: LogFile | None, spans: SpanExport | None) -> list[Listener]:
    listeners: list[Listener] = [AccessLog(log)]
    if spans is not None:
        from chaski.server.telemetry.traces import Traces

        listeners.append(Traces(spans.tracer))
    return listeners


def _routes() -> list[Route]:
    return [
        Route("/", web.root),
        Route("/web/{name}", web.asset),
        *_get("/health", general.health),
        *_get("/metrics", general.metrics),
        *_get("/openapi.json", general.openapi),
        *_get("/docs", general.docs),
        *_get("/api/version", general.version),
        *_get("/api/status", general.status),
        *_get("/api/key", general.key),
        *_get("/api/tags", store.tags),
        *_get("/api/ps", store.ps),
        *_get("/api/live/cache", live.cache),
        *_get("/api/live", live.live),
        _post("/api/show", store.show),
        _post("/api/memory", store.memory),
        _post("/api/generate", native.generate),
        _post("/api/chat", native.chat),
        *_get("/api/answers/{id}", answers.follow),
        _bodiless("DELETE", "/api/answers/{id}", answers.stop),
        _post("/api/embed", native.embed),
        _post("/api/embeddings", native.embeddings),
        _post("/api/rerank", rerank.native),
        _post("/api/tokenize", native.tokenize),
        _post("/api/detokenize", native.detokenize),
        _post("/api/create", store.create),
        _post("/api/copy", store.copy),
        _post("/api/states", states.keep),
        _post("/api/cluster/drain", cluster.drain),
        _post("/api/cluster/replace", cluster.replace),
        _post("/api/pull", store.pull),
        _post("/api/push", store.push),
        _post("/v1/chat/completions", openai.chat),
        _post("/v1/completions", openai.completions),
        _post("/v1/embeddings", openai.embeddings),
        _post("/v1/rerank", rerank.openai),
        _post("/rerank", rerank.plain),
        _post("/v2/rerank", rerank.cohere),
        _post("/tokenize", engines.tokenize),
        _post("/detokenize", engines.detokenize),
        _post("/apply-template", engines.apply_template),
        _post("/infill", engines.infill),
        *_get("/props", engines.props),
        *_get("/slots", engines.slots),
        _post("/slots/{id}", states.change_slot),
        *_get("/lora-adapters", adapters.listed),
        _post("/lora-adapters", adapters.set_scales),
        _post("/v1/load_lora_adapter", adapters.load),
        _post("/v1/unload_lora_adapter", adapters.unload),
        *_get("/v1/models", openai.models),
        *_get("/v1/models/{model:path}", openai.model),
        _post("/v1/responses", responses.create),
        _post("/v1/responses/input_tokens", responses.count_tokens),
        *_get("/v1/responses/{id}", responses.retrieve),
        *_get("/v1/responses/{id}/input_items", responses.list_input),
        _bodiless("POST", "/v1/responses/{id}/cancel", responses.cancel),
        _bodiless("DELETE", "/v1/responses/{id}", responses.delete),
        Route("/v1/files", batches.upload, methods=["POST"]),
        *_get("/v1/files", batches.files),
        *_get("/v1/files/{id}", batches.file),
        *_get("/v1/files/{id}/content", batches.content),
        _bodiless("DELETE", "/v1/files/{id}", batches.delete),
        _post("/v1/batches", batches.create),
        *_get("/v1/batches", batches.batches),
        *_get("/v1/batches/{id}", batches.batch),
        _bodiless("POST", "/v1/batches/{id}/cancel", batches.cancel),
        _post("/v1/messages", anthropic.messages),
        _post("/v1/messages/count_tokens", anthropic.count_tokens),
        _body("DELETE", "/api/delete", store.delete),
        Route("/api/blobs/{digest}", store.has_blob, methods=["HEAD"]),
        Route("/api/blobs/{digest}", store.put_blob, methods=["POST"]),
    ]


def _post(path: str, handler: Handler) -> Route:
    return _body("POST", path, handler)


def _body(method: str, path: str, handler: Handler) -> Route:
    return Route(path, Endpoint(handler, BODIES[method, path]), methods=[method])


def _bodiless(method: str, path: str, handler: Handler) -> Route:
    return Route(path, Endpoint(handler), methods=[method])


def _get(path: str, handler: Handler) -> list[Route]:
    return [_bodiless("GET", path, handler)]


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(_REFUSALS.get(error.status_code, error.detail), error.status_code)
