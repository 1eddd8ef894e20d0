"""Requests to the server: its ASGI application runs in this process, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chaski
from chaski.address import Address
from chaski.names import ModelName
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.server.app import create_app
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from fuzz.mutations import mixed, mutate_bytes, mutate_json, words
from fuzz.scratch import folder
from fuzz.target import Target
from tests.tiny_llama import write_tiny_llama

__all__ = ["BOUNDARY", "MODEL", "TARGETS"]

MODEL = "tiny"
BOUNDARY = b"cut"
_CONTEXT = 96
# Models that requests created; then the store is made again.
_MOST_MODELS = 30


def http(data: bytes) -> None:
    """Every request is answered, and never with "internal server error". Answers in JSON are JSON.

    An input is an object with `method`, `path`, `headers` and `body`. A text as body is sent as it is.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    body = found.get("body")
    sent = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()
    headers = found.get("headers")
    fields = {"content-type": "application/json", **(headers if isinstance(headers, dict) else {})}
    _server().ask(str(found.get("method", "POST")), str(found.get("path")), fields, sent)


def multipart(data: bytes) -> None:
    """Every form with a file is answered, and never with "internal server error"."""
    fields = {"content-type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    _server().ask("POST", "/v1/files", fields, data)


class _Server:
    """The application in an event loop of its own, which runs during requests only."""

    def __init__(self) -> None:
        self._store = Store(folder() / "store")
        self._path = write_tiny_llama(folder() / "served.gguf")
        self._create_model()
        self._faults = _Faults()
        logging.getLogger("chaski").addHandler(self._faults)
        logging.getLogger("chaski").propagate = False
        settings = Settings(
            Address("127.0.0.1", 0), context=_CONTEXT, parallel=1, grace=0.0, files=1 << 20, keep_alive=60.0
        )
        self._app: Any = create_app(settings, self._store, _in_process)
        self._loop = asyncio.new_event_loop()
        self._life = self._app.router.lifespan_context(self._app)
        self._loop.run_until_complete(self._life.__aenter__())

    def ask(self, method: str, path: str, headers: Mapping[str, Any], body: bytes) -> None:
        """Send a request, and check the reply. Raises the error of a handler with a defect."""
        self._faults.errors.clear()
        status, fields, reply = self._loop.run_until_complete(self._answer(method, path, headers, body))
        if self._faults.errors:
            raise self._faults.errors[0]
        assert 200 <= status < 600, f"status {status}"
        assert b"internal server error" not in reply or status != 500, f"status {status}: {reply[:200]!r}"
        if fields.get("content-type", "").startswith("application/json") and reply:
            json.loads(reply)
        self._restore_model()

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, Any], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        sent = [{"type": "http.request", "body": body, "more_body": False}]
        status, fields, reply = 0, {}, bytearray()

        async def receive() -> Any:
            if not sent:
                await asyncio.Event().wait()  # the client stays connected
            return sent.pop()

        async def send(message: Any) -> None:
            nonlocal status, fields
            if message["type"] == "http.response.start":
                status = message["status"]
                fields = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            else:
                reply.extend(message.get("body", b""))

        await self._app(_scope(method, path, headers, len(body)), receive, send)
        return status, fields, bytes(reply)

    def _create_model(self) -> None:
        for _ in create(self._store, ModelName.parse(MODEL), Recipe(sources=[self._path])):
            pass

    def _restore_model(self) -> None:
        """Create the model again if a request deleted it, and delete models that requests created."""
        names = list(self._store.names())
        if len(names) > _MOST_MODELS:
            for name in names:
                self._store.remove(name)
        if not any(str(name).startswith(MODEL) for name in names) or len(names) > _MOST_MODELS:
            self._create_model()


class _Faults(logging.Handler):
    """Keeps the errors that the server reports as its defects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], BaseException):
            self.errors.append(record.exc_info[1])


class _in_process:  # noqa: N801 - it takes the place of a function
    """A model of this process in place of a worker."""

    num_replicas = 1
    is_running = True

    def __init__(self, path: Path, *, progress: Any = None, **options: Any) -> None:
        self._model = chaski.load(path, **{**options, "threads": 1, "prompt_cache": False})

    def asynchronous(self) -> AsyncModel:
        return self._model.asynchronous()

    def close(self) -> None:
        self._model.close()


def _scope(method: str, path: str, headers: Mapping[str, Any], length: int) -> dict[str, Any]:
    place, _, query = path.partition("?")
    fields = {
        "host": "localhost",
        "content-length": str(length),
        **{k.lower(): v for k, v in headers.items()},
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.upper(),
        "scheme": "http",
        "path": place,
        "raw_path": quote(place).encode(),
        "root_path": "",
        "query_string": quote(query, safe="=&%+").encode(),
        "headers": [
            (k.encode("latin-1", "replace"), str(v).encode("latin-1", "replace")) for k, v in fields.items()
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 11434),
        "state": {},
    }


@cache
def _server() -> _Server:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror("inputs reach no network")

    socket.getaddrinfo = refuse
    return _Server()


_FORM = words(
    "--cut", "--cut--", "\r\n", "\r\n\r\n", "Content-Disposition: form-data; ", 'name="file"',
    'name="purpose"',
    'filename="a.jsonl"', "filename*=utf-8''%e9", "Content-Type: application/jsonl", "batch", ";", '"', "=",
)  # fmt: skip

TARGETS = (
    Target("http", http, mutate_json, 10),
    Target("multipart", multipart, mixed(_FORM, mutate_bytes), 10),
)
