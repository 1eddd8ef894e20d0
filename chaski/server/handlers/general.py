"""Whether the server is there and well, and what it counts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from chaski.server.endpoint import Ask, Reply

__all__ = ["API_VERSION", "health", "metrics", "root", "status", "version"]

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


async def metrics(ask: Ask) -> Reply:
    """The page for Prometheus."""
    page, media_type = ask.services.metrics.page()
    return Response(page, media_type=media_type)
