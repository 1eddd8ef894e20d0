"""`create_app`: build the application with all routes, and start and stop its services."""

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
from starlette.routing import Match

from chaski.server.http.access_log import AccessLog
from chaski.server.http.api import OLLAMA, api_of
from chaski.server.http.exchanges import Exchanges, Listener
from chaski.server.http.guard import Guard
from chaski.server.http.log_file import LogFile
from chaski.server.http.problems import Problem
from chaski.server.in_process import InProcess
from chaski.server.models.loaded import OpenWorker
from chaski.server.routes import ROUTES, access_of
from chaski.server.services import Services
from chaski.server.settings import Settings
from chaski.server.telemetry.otlp import open_export
from chaski.store.store import Store

if TYPE_CHECKING:
    from chaski.cluster.connection import Cluster
    from chaski.server.telemetry.span_export import SpanExport

__all__ = ["create_app"]

# As Ollama writes them, without JSON.
_REFUSALS = {404: "404 page not found", 405: "405 method not allowed"}


def create_app(
    settings: Settings, model_store: Store, open_worker: OpenWorker, cluster: Cluster | None = None
) -> Starlette:
    """Build the application. `open_worker` starts the process of a model.

    Raises MissingPackageError if spans are to be sent and OpenTelemetry is not installed.
    """
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
        routes=ROUTES,
        middleware=[
            Middleware(Exchanges, listeners=_listeners(log, spans)),
            Middleware(Guard, settings=settings, access_of=access_of),
        ],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
        lifespan=life,
    )


def _listeners(log: LogFile | None, spans: SpanExport | None) -> list[Listener]:
    listeners: list[Listener] = [AccessLog(log)]
    if spans is not None:
        from chaski.server.telemetry.traces import Traces

        listeners.append(Traces(spans.tracer))
    return listeners


async def _refuse(request: Request, error: Exception) -> Response:
    """Refuse a request that no route takes, in the form of its API."""
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    matching = [route for route in ROUTES if route.matches(request.scope)[0] is not Match.NONE]
    methods = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
    headers = {"Allow": methods} if status == 405 else {}
    api = api_of(path)
    if api is OLLAMA:
        return PlainTextResponse(_REFUSALS.get(status, error.detail), status, headers)
    hint = f"{path:.200} takes {methods}" if status == 405 else "GET /docs lists all routes"
    response = api.refusal(Problem(status, f"there is no {request.method} {path:.200}; {hint}"))
    response.headers.update(headers)
    return response


async def _fail(request: Request, error: Exception) -> Response:
    """Answer a request whose handler has a defect. The server logs the error."""
    return api_of(request.url.path).refusal(Problem(500, "internal server error"))
