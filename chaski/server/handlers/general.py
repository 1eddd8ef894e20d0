"""Whether the server is there and well, and what it counts."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from chaski.server.http.endpoint import Ask, Reply

__all__ = ["API_VERSION", "docs", "health", "metrics", "openapi", "root", "status", "version"]

API_VERSION = "0.32.15"
"""The version of Ollama whose API this is; clients choose by it what they use."""


async def root(request: Request) -> Response:
    """What every client of Ollama asks to see whether it is there."""
    return PlainTextResponse("Ollama is running")


async def version(ask: Ask) -> Reply:
    """The version of the API, and ours."""
    from chaski import __version__

    return {"version": API_VERSION, "chaski": __version__}


async def status(ask: Ask) -> Reply:
    """There is no cloud here."""
    return {"cloud": {"disabled": True, "source": "config"}}


async def health(ask: Ask) -> Reply:
    """Whether it answers, and how much it has to do."""
    models = ask.services.models
    running = [{"model": each.name, "users": each.users} for each in models.loaded]
    return {"status": "ok", "models": running, "waiting_for_load": models.waiting}


async def openapi(ask: Ask) -> Reply:
    """All endpoints and their fields, as an OpenAPI document."""
    return _document(ask)


async def docs(ask: Ask) -> Reply:
    """The same as a page for people."""
    from chaski.server.openapi import page

    # Nothing on the page may load or run anything, whatever might get into it.
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return HTMLResponse(page(_document(ask)), headers={"Content-Security-Policy": policy})


def _document(ask: Ask) -> dict[str, Any]:
    from chaski import __version__
    from chaski.server.openapi import document

    return document(ask.request.app.routes, __version__)


async def metrics(ask: Ask) -> Reply:
    """The page for Prometheus."""
    page, media_type = ask.services.metrics.page()
    return Response(page, media_type=media_type)
