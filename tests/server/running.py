"""A real server in a thread on a free port, and requests to it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from chaski.runner.channels.worker.client import Worker
from chaski.server.app import create_app
from chaski.server.models.loaded import OpenWorker
from chaski.server.run import Server, listen
from chaski.server.settings import Settings
from chaski.store.store import Store


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> str:
        text: str = self.json["error"]
        return text


@dataclass(frozen=True, slots=True)
class Running:
    """A running server that tests send requests to."""

    port: int
    app: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request. `body`: bytes unchanged, other values as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request(method, path, data, dict(headers or {}))
            with connection.getresponse() as response:
                received = response.read()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, received)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    @property
    def services(self) -> Any:
        return self.app.state.services


@contextmanager
def running(settings: Settings, folder: Path, open_worker: OpenWorker = Worker) -> Iterator[Running]:
    """Serve the models of a folder until the block ends."""
    listener = listen(settings)
    app = create_app(settings, Store(folder), open_worker)
    server = Server(app, settings)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Running(listener.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive(), "the server did not end"


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.005)
