"""The registry of simulated worlds. It serves models to pulls; connections and answers fail as it is told."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from random import Random
from typing import Any
from urllib.parse import SplitResult

import httpcore2

from chaski.store import pull, registry
from chaski.store.download import Pace
from chaski.store.http import Access, Http
from tests.simulation.scheduler import SCHEDULER
from tests.simulation.weights import PULLED, model_files

__all__ = ["REGISTRY", "use_simulated_registry"]

_KIND = "application/vnd.ollama.image."
_SILENCE = 30.0  # seconds after which a client no longer waits
_FAULTS = ("refused", "busy", "silent", "cut", "wrong", "whole", "gone")


class Registry:
    """Models by name, in versions that differ by a license. `fail` lets a share of all requests fail."""

    def __init__(self) -> None:
        self.begin_world(Random(0))

    def begin_world(self, random: Random) -> None:
        self._random = random
        self._version = 0
        self._rate = 0.0
        self.num_failed = 0

    def fail(self, rate: float) -> None:
        self._rate = rate

    def publish(self) -> None:
        """Replace all models by another version."""
        self._version += 1

    def answer(self, path: str, range_: str, connections: _Connections) -> httpcore2.Response:
        """Answer a GET. Raises errors of connections."""
        fault = ""
        if self._random.random() < self._rate:
            self.num_failed += 1
            fault = self._random.choice(_FAULTS)
        connections.wait(self._random.choice((0.001, 0.1, 2.0)))
        if fault == "refused":
            raise httpcore2.ConnectError("refused")
        if fault == "silent":
            connections.wait(_SILENCE)
            raise httpcore2.ReadTimeout("silent")
        data = self._found(path)
        if fault == "busy" or data is None or fault == "gone":
            return httpcore2.Response(503 if fault == "busy" else 404)
        headers, status = {}, 200
        if (match := re.fullmatch(r"bytes=(\d+)-(\d+)", range_)) and fault != "whole":
            begin, end = int(match[1]), int(match[2]) + 1
            headers, status = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, 206
            data = data[begin:end]
        body = self._body(bytearray(data), fault, connections)
        return httpcore2.Response(status, headers=headers, content=body)

    def _body(self, data: bytearray, fault: str, connections: _Connections) -> Iterator[bytes]:
        if fault == "wrong":
            data[self._random.randrange(len(data))] ^= 1
        end = self._random.randint(0, len(data)) if fault == "cut" else len(data)
        begin = 0
        while begin < end:
            size = min(self._random.choice((1000, 30_000, 100_000)), end - begin)
            connections.wait(size * 1e-6)
            yield bytes(data[begin : begin + size])
            begin += size
        if fault == "cut":
            raise httpcore2.ReadError("cut")

    def _found(self, path: str) -> bytes | None:
        """Return the bytes of a manifest or a blob."""
        licenses = [b"version %d" % version for version in range(self._version + 1)]
        weights = model_files()[PULLED[0]].read_bytes()
        if "/manifests/" not in path:
            digest = path.rpartition(":")[2]
            return next((each for each in (_CONFIG, *licenses, weights) if _digest(each) == digest), None)
        layers = [_described(f"{_KIND}model", weights), _described(f"{_KIND}license", licenses[-1])]
        config = _described("application/vnd.docker.container.image.v1+json", _CONFIG)
        return json.dumps({"schemaVersion": 2, "mediaType": "?", "config": config, "layers": layers}).encode()


_CONFIG = b'{"model_format":"gguf"}'


@cache
def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _described(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}


REGISTRY = Registry()


class _Connections:
    """The connections of one client."""

    def __init__(self) -> None:
        self._is_closed = False

    @contextmanager
    def stream(self, method: str, url: str, headers: Any, **options: Any) -> Iterator[httpcore2.Response]:
        yield REGISTRY.answer(url, dict(headers).get("Range", ""), self)

    def wait(self, seconds: float) -> None:
        """Wait for the other side; `close` ends it."""
        end = SCHEDULER.now + seconds
        while SCHEDULER.now < end and not self._is_closed:
            SCHEDULER.sleep(min(1.0, seconds))
        if self._is_closed:
            raise httpcore2.ReadError("closed")

    def close(self) -> None:
        self._is_closed = True


class _Http(Http):
    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections = _Connections()

    def close(self) -> None:
        self._connections.close()

    def _pool(self, parts: SplitResult) -> Any:
        return self._connections


def use_simulated_registry() -> None:
    """Let pulls reach this registry from now on, and fetch small blobs in parts too."""
    place: Any = registry
    place.Http = _Http
    place = pull
    place.Pace = partial(Pace, connections=3, min_part_bytes=100_000, tries=3)
