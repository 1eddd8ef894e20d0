"""The page at `/` for browsers, and its files. API clients get Ollama's text instead of the page.

Browsers and crawlers ask for some files that no page links to.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from chaski.server.web import PageFile, icon_file, page_file, page_headers, wants_page

__all__ = ["asset", "icon", "robots", "root"]

_FOR_EVER = "public, max-age=31536000, immutable"
_FOR_A_DAY = "public, max-age=86400"


async def root(request: Request) -> Response:
    """Return the web page to browsers, and Ollama's greeting, which its clients expect, to all others."""
    if not wants_page(request.headers):
        return PlainTextResponse("Ollama is running")
    kept = {"Cache-Control": "no-cache", "Vary": "Accept, Accept-Encoding"}
    return _sent(request, await asyncio.to_thread(page_file, "index.html"), kept)


async def asset(request: Request) -> Response:
    """Return a file of the page."""
    kept = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    return _sent(request, await asyncio.to_thread(page_file, request.path_params["name"]), kept)


async def icon(request: Request) -> Response:
    """Return the icon of the server, which browsers show with its pages, also for `-precomposed`."""
    name = request.url.path.lstrip("/").replace("-precomposed", "")
    return _sent(request, await asyncio.to_thread(icon_file, name), {"Cache-Control": _FOR_A_DAY})


async def robots(request: Request) -> Response:
    """Ask crawlers to read nothing."""
    return PlainTextResponse("User-agent: *\nDisallow: /\n")


def _sent(request: Request, found: PageFile | None, headers: dict[str, str]) -> Response:
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
