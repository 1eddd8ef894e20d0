"""Routes that tell whether the server runs, and what it counts."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response

from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.http.guard import has_key, may_change_models
from chaski.server.telemetry.gauges import kv_cache_usage

__all__ = ["API_VERSION", "docs", "health", "key", "metrics", "openapi", "status", "version"]

API_VERSION = "0.32.15"
"""The version of Ollama's API; clients choose features by it."""


async def version(http: HTTPRequest) -> Reply:
    """The version of the API, and ours."""
    from chaski import __version__

    return {"version": API_VERSION, "chaski": __version__}


async def status(http: HTTPRequest) -> Reply:
    """Tell that no cloud is used."""
    return {"cloud": {"disabled": True, "source": "config"}}


async def key(http: HTTPRequest) -> Reply:
    """Tell whether the client's key may change models."""
    return {"may_change_models": may_change_models(http.request.headers, http.services.settings)}


async def health(http: HTTPRequest) -> Reply:
    """Tell that the server answers, and to clients with a key how much it has to do."""
    if not has_key(http.request.headers, http.services.settings):
        return {"status": "ok"}
    models = http.services.models
    running = [{"model": each.name, "users": each.users} for each in models.loaded]
    return {"status": "ok", "models": running, "waiting_for_load": models.waiting}


async def openapi(http: HTTPRequest) -> Reply:
    """Return all endpoints and their fields, as an OpenAPI document."""
    return _document(http)


async def docs(http: HTTPRequest) -> Reply:
    """The endpoints and their fields as a page for people."""
    from chaski.server.openapi import page

    # Nothing on the page may load or run anything, whatever might get into it.
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return HTMLResponse(page(_document(http)), headers={"Content-Security-Policy": policy})


def _document(http: HTTPRequest) -> dict[str, Any]:
    from chaski import __version__
    from chaski.server.openapi import document

    return document(http.request.app.routes, __version__)


async def metrics(http: HTTPRequest) -> Reply:
    """The page for Prometheus."""
    usage = await kv_cache_usage(await http.services.models.refreshed())
    page, media_type = http.services.metrics.page(usage)
    return Response(page, media_type=media_type)
