"""A small MCP server over streamable HTTP (revision 2025-06-18), and fixtures to import that serve it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until
from tests.server.thinker import TEMPLATE
from tests.tiny_llama import write_tiny_llama

__all__ = ["McpServer", "allowing", "serving", "thinking", "tool", "weather"]

VERSION = "2025-06-18"
CITY = {"type": "string", "description": "name of a city"}
SUNNY = {"content": [{"type": "text", "text": "It is sunny in Cusco."}]}
ASKED = "Authorization, Content-Type, Mcp-Session-Id, MCP-Protocol-Version"


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    }


@dataclass
class McpServer:
    """The tools and the behaviour of the server.

    pages    tools on each page of the list
    results  results of calls by tool name; a text is an error message
    by_event answers come as events
    origins  origins that CORS allows; None for any
    key      the required Authorization header
    hold     calls are answered only after it is set
    """

    pages: list[list[dict[str, Any]]] = field(default_factory=lambda: [[]])
    results: dict[str, Any] = field(default_factory=dict)
    by_event: bool = False
    exposes: bool = True
    origins: tuple[str, ...] | None = None
    version: str = VERSION
    key: str = ""
    hold: threading.Event | None = None
    redirect: str = ""
    port: int = 0
    sessions: set[str] = field(default_factory=set)
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def asked(self, method: str) -> list[Any]:
        """Return the parameters of all messages of a method."""
        return [body.get("params") for _, _, body in self.seen if body and body.get("method") == method]

    async def answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return self._with_cors(request, Response(status_code=204))
        if request.method == "HEAD":
            return PlainTextResponse("")
        body = await request.json() if request.method == "POST" else None
        self.seen.append((request.method, dict(request.headers), body))
        return self._with_cors(request, self._answer(request, body))

    def _answer(self, request: Request, body: Any) -> Response:
        if request.url.path != "/mcp":
            return PlainTextResponse("nothing here", 404)
        if self.redirect:
            return RedirectResponse(self.redirect, 307)
        if self.key and request.headers.get("authorization") != self.key:
            return PlainTextResponse("no key", 401)
        session = request.headers.get("mcp-session-id", "")
        if request.method == "DELETE":
            self.sessions.discard(session)
            return Response(status_code=204)
        accepts = request.headers["accept"]
        assert "application/json" in accepts
        assert "text/event-stream" in accepts
        if body["method"] == "initialize":
            session = f"s{len(self.seen)}"
            self.sessions.add(session)
            told = {
                "protocolVersion": self.version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "t"},
            }
            return self._say(body, {"result": told}, {"Mcp-Session-Id": session})
        if not session:
            return PlainTextResponse("Missing session ID", 400)
        if session not in self.sessions:
            return JSONResponse(
                {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "x"}}, 404
            )
        assert request.headers["mcp-protocol-version"] == self.version
        if "id" not in body or "method" not in body:
            return Response(status_code=202)
        return self._say(body, self._reply(body["method"], body["params"]))

    def _reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/list":
            page = int(params.get("cursor", "0"))
            more = {"nextCursor": str(page + 1)} if page + 1 < len(self.pages) else {}
            return {"result": {"tools": self.pages[page], **more}}
        found = self.results.get(params["name"], "unknown tool")
        if isinstance(found, str):
            return {"error": {"code": -32602, "message": found}}
        return {"result": found}

    def _say(self, body: Any, reply: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
        answer = {"jsonrpc": "2.0", "id": body["id"], **reply}
        is_call = body["method"] == "tools/call"

        async def events() -> AsyncIterator[str]:
            yield ": begins\r\n\r\n"
            yield 'event: message\r\ndata: {"jsonrpc": "2.0", "id": 7, "method": "ping"}\r\n\r\n'
            yield 'data: {"jsonrpc": "2.0", "id": 8, "method": "sampling/createMessage", "params": {}}\n\n'
            yield 'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n\n'
            if is_call and self.hold is not None:
                while not self.hold.is_set():
                    await _pause()
            half = len(json.dumps(answer)) // 2
            text = f"id: 1\nevent: message\ndata: {json.dumps(answer)}\n\n"
            yield text[:half]
            await _pause()
            yield text[half:]

        if self.by_event:
            return StreamingResponse(events(), media_type="text/event-stream", headers=headers)
        return JSONResponse(answer, headers=headers)

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get("origin", "")
        if self.origins is None or origin in self.origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "POST, DELETE"
            response.headers["Access-Control-Allow-Headers"] = ASKED
            if self.exposes:
                response.headers["Access-Control-Expose-Headers"] = "Mcp-Session-Id"
        return response


async def _pause() -> None:
    await asyncio.sleep(0.02)


@contextmanager
def serving(server: McpServer) -> Iterator[McpServer]:
    """Serve on a free port until the block ends."""
    methods = ["POST", "DELETE", "OPTIONS", "HEAD"]
    app = Starlette(routes=[Route("/{path:path}", server.answer, methods=methods)])
    listener = socket.create_server(("127.0.0.1", 0))
    server.port = listener.getsockname()[1]
    runner = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=runner.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: runner.started)
        yield server
    finally:
        runner.should_exit = runner.force_exit = True
        thread.join(20)
        listener.close()


@pytest.fixture
def weather() -> Iterator[McpServer]:
    server = McpServer([[tool("weather", "Tells the weather of a city.", city=CITY)]], {"weather": SUNNY})
    with serving(server):
        yield server


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for _ in create(Store(folder), ModelName.parse("thinker"), Recipe(sources=[file])):
        pass
    return folder


@pytest.fixture
def allowing(thinking: Path, script: Script, weather: McpServer) -> Iterator[Running]:
    """Run a server whose page may reach the MCP server."""
    with running(Settings(address=SOMEWHERE, mcp_servers=(weather.origin,)), thinking, script.open) as server:
        yield server
