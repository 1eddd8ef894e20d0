"""The page at `/` for browsers, and its files. API clients get Ollama's text instead of the page."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from chaski.server.web import page_file, page_headers, wants_page

__all__ = ["asset", "root"]

_FOR_EVER = "public, max-age=31536000, immutable"


async def root(request: Request) -> Response:
    """Return the web page to browsers, and Ollama's greeting, which its clients expect, to all others."""
    if not wants_page(request.headers):
        return PlainTextResponse("Ollama is running")
    return await _file(
        request, "index.html", {"Cache-Control": "no-cache", "Vary": "Accept, Accept-Encoding"}
    )


async def asset(request: Request) -> Response:
    """Return a file of the page."""
    kept = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    return await _file(request, request.path_params["name"], kept)


async def _file(request: Request, name: str, headers: dict[str, str]) -> Response:
    found = await asyncio.to_thread(page_file, name)
    if found is None:
        raise HTTPException(404)
    reached = request.app.state.services.settings.mcp_servers
    headers = {**page_headers(reached), **headers, "ETag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if found.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            found.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.media_type
        )
    return Response(found.data, headers=headers, media_type=found.media_type)
