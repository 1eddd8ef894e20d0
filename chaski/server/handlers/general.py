"""Routes for the server's state, metrics and documentation."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse, Response

from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.http.guard import has_key, may_change_models
from chaski.server.telemetry.gauges import kv_cache_usage

__all__ = [
    "API_VERSION",
    "docs",
    "health",
    "key",
    "live",
    "metrics",
    "openapi",
    "receipt_key",
    "status",
    "version",
]

API_VERSION = "0.32.15"
"""The version of Ollama's API; clients choose features by it."""


async def version(http: HTTPRequest) -> Reply:
    """Return the versions of Ollama's API and of chaski."""
    from chaski import __version__

    return {"version": API_VERSION, "chaski": __version__}


async def status(http: HTTPRequest) -> Reply:
    """Report that the server uses no cloud."""
    return {"cloud": {"disabled": True, "source": "config"}}


async def key(http: HTTPRequest) -> Reply:
    """Report whether the client's key may change models."""
    return {"may_change_models": may_change_models(http.request.headers, http.services.settings)}


async def receipt_key(http: HTTPRequest) -> Reply:
    """Return the public key that signs the receipts of this server."""
    return {"algorithm": "Ed25519", "key": await asyncio.to_thread(http.services.receipts.public_key)}


async def live(http: HTTPRequest) -> Reply:
    """Report that the server's process responds. A process that does not should be started again."""
    return {"status": "ok"}


async def health(http: HTTPRequest) -> Reply:
    """Report whether the server can answer requests, and its load to clients with a key.

    Status 503 with the reason while the cluster that computes its models cannot be used.
    """
    models, cluster = http.services.models, http.request.app.state.cluster
    problem = None if cluster is None else cluster.problem()
    report: dict[str, Any] = (
        {"status": "ok"} if problem is None else {"status": "unavailable", "reason": problem}
    )
    if has_key(http.request.headers, http.services.settings):
        report["models"] = [{"model": each.name, "users": each.users} for each in models.loaded]
        report["waiting_for_load"] = models.waiting
    return report if problem is None else JSONResponse(report, 503, {"Retry-After": "10"})


async def openapi(http: HTTPRequest) -> Reply:
    """Return all endpoints and their fields, as an OpenAPI document."""
    return _document(http)


async def docs(http: HTTPRequest) -> Reply:
    """Return all endpoints and their fields, as an HTML page."""
    from chaski.server.openapi import page

    # The page must never load or run anything, even if it were to contain foreign content.
    # The only image is the server's icon.
    sources = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'"
    policy = f"{sources}; base-uri 'none'; form-action 'none'"
    return HTMLResponse(page(_document(http)), headers={"Content-Security-Policy": policy})


def _document(http: HTTPRequest) -> dict[str, Any]:
    from chaski import __version__
    from chaski.server.openapi import document

    return document(http.request.app.routes, __version__)


async def metrics(http: HTTPRequest) -> Reply:
    """Return the metrics in Prometheus format."""
    usage = await kv_cache_usage(await http.services.models.refreshed())
    page, media_type = http.services.metrics.page(usage)
    return Response(page, media_type=media_type)
