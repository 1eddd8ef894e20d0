"""A registry on a local port that stores uploads, and injects configured faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from chaski.names import ModelName

Fault = Callable[["Handler", bytes, int, int], None]
KIND = "application/vnd.ollama.image."


class FakeRegistry:
    """Blobs by digest, manifests by `namespace/model:tag`.

    files: the files of the repository `me/model` as on Hugging Face's Hub; a split model has no manifest.
    faults: each answers one GET of a blob with a fault instead of the correct reply.
    requests: method, path and headers of all requests.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.manifest_headers: dict[str, str] = {}
        self.faults: deque[Fault] = deque()
        self.has_ranges = True
        self.files: dict[str, bytes] = {}  # files of a Hub repository by path
        self.files_per_page = 2
        self.token: str | None = None
        self.realm: str | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.uploads: dict[str, bytearray] = {}
        self.upload_cuts: deque[int] = deque()
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.registry = self

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def name(self, text: str = "me/model:1") -> ModelName:
        return ModelName.parse(f"http://{self.host}/{text}")

    def put(self, layers: dict[str, bytes], name: str = "me/model:1") -> bytes:
        """Store a model with these layers by kind; return the bytes of its manifest."""
        config = self.put_blob("application/vnd.docker.container.image.v1+json", b'{"model_format":"gguf"}')
        listed = [self.put_blob(KIND + kind.split("#")[0], data) for kind, data in layers.items()]
        manifest = {"schemaVersion": 2, "mediaType": "?", "config": config, "layers": listed, "extra": "kept"}
        self.manifests[name] = json.dumps(manifest, indent=1).encode()
        return self.manifests[name]

    def put_blob(self, media_type: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    @contextmanager
    def running(self) -> Iterator[FakeRegistry]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: FakeRegistry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect; this is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    @property
    def registry(self) -> FakeRegistry:
        return self.server.registry

    def _answer(self) -> None:
        self.registry.requests.append((self.command, self.path, dict(self.headers.items())))
        path = urlsplit(self.path).path
        if path == "/token":
            self.reply(200, json.dumps({"token": self.registry.token}).encode())
        elif self.registry.token and self.headers.get("Authorization") != f"Bearer {self.registry.token}":
            realm = self.registry.realm or f"http://{self.registry.host}/token"
            self._discard()
            self.reply(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}",service="reg",scope="pull"'})
        elif match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            self._manifest(f"{match[1]}:{match[2]}")
        elif "/blobs/uploads/" in path:
            self._upload(path.rpartition("/")[2])
        elif match := re.fullmatch(r"/v2/.+/blobs/(.+)", path):
            self._blob(self.registry.blobs.get(match[1]))
        elif path == "/api/models/me/model/tree/main":
            self._list_files()
        elif match := re.fullmatch(r"/me/model/resolve/main/(.+)", path):
            self.reply(302, b"", {"Location": f"/cdn/{match[1]}?signed=1"})
        elif match := re.fullmatch(r"/cdn/(.+)", path):
            self._blob(self.registry.files.get(unquote(match[1])))
        else:
            self.reply(404, b"")

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return one handler for all methods: `do_GET`, `do_PUT` and so on."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.start(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def start(self, status: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()

    def cut(self) -> None:
        """End the connection."""
        self.wfile.flush()
        self.close_connection = True

    def _manifest(self, name: str) -> None:
        if self.command == "PUT":
            self.registry.manifests[name] = self._body()
            self.reply(201, b"")
        elif name in self.registry.manifests:
            self.reply(200, self.registry.manifests[name], self.registry.manifest_headers)
        elif self.registry.files:
            self.reply(400, json.dumps({"error": "The specified tag is a sharded GGUF."}).encode())
        else:
            self.reply(404, b"")

    def _list_files(self) -> None:
        begin = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        end = begin + self.registry.files_per_page
        listed = list(self.registry.files.items())
        entries = [{"type": "directory", "path": "folder", "size": 0, "oid": "0"}]
        entries += [_listed(path, data) for path, data in listed[begin:end]]
        following = f'<http://{self.registry.host}{self.path.partition("&")[0]}&cursor={end}>; rel="next"'
        self.reply(200, json.dumps(entries).encode(), {"Link": following} if end < len(listed) else {})

    def _blob(self, data: bytes | None) -> None:
        if data is None:
            self.reply(404, b"")
        elif self.command == "HEAD":
            self.start(200, len(data))
        else:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
            if self.registry.faults:
                self.registry.faults.popleft()(self, data, begin, end)
            else:
                self.serve(data, begin, end)

    def serve(self, data: bytes, begin: int, end: int) -> None:
        """Send the correct reply."""
        if self.headers.get("Range") is None or not self.registry.has_ranges:
            self.reply(200, data)
        else:
            self.reply(206, data[begin:end], range_header(begin, end, len(data)))

    def _upload(self, upload: str) -> None:
        uploads, location = self.registry.uploads, {"Location": self.path.partition("?")[0]}
        if self.command == "POST":
            mount = parse_qs(urlsplit(self.path).query).get("mount", [""])[0]
            if mount in self.registry.blobs:
                return self.reply(201, b"")
            uploads["u1"] = bytearray()
            return self.reply(202, b"", {"Location": location["Location"] + "u1?state=x"})
        if self.command == "PATCH":
            begin = int(self.headers["Content-Range"].partition("-")[0])
            if begin != len(uploads[upload]):
                self._discard()
                return self.reply(416, b"")
            if self.registry.upload_cuts:
                uploads[upload] += self.rfile.read(self.registry.upload_cuts.popleft())
                return self.cut()
            uploads[upload] += self._body()
            return self.reply(202, b"", location)
        if self.command == "GET":
            return self.reply(204, b"", {**location, "Range": f"0-{max(len(uploads[upload]) - 1, 0)}"})
        data, wanted = bytes(uploads.pop(upload)), parse_qs(urlsplit(self.path).query)["digest"][0]
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if found == wanted:
            self.registry.blobs[found] = data
        return self.reply(201 if found == wanted else 400, b"")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _discard(self) -> None:
        self._body()


def _listed(path: str, data: bytes) -> dict[str, Any]:
    large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
    lfs = {"lfs": large} if path.lower().endswith(".gguf") else {}
    return {"type": "file", "path": path, "size": len(data), "oid": "0" * 40, **lfs}


def range_header(begin: int, end: int, size: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}


def cut_after(count: int) -> Fault:
    """Announce the full length, send this many bytes, and end the connection."""

    def fault(handler: Handler, data: bytes, begin: int, end: int) -> None:
        is_range = handler.headers.get("Range") is not None
        headers = range_header(begin, end, len(data)) if is_range else {}
        handler.start(206 if is_range else 200, end - begin, headers)
        handler.wfile.write(data[begin:end][:count])
        handler.cut()

    return fault


def stall_after(count: int) -> Fault:
    """Announce the full length, send this many bytes, and then nothing until the test ends."""

    def fault(handler: Handler, data: bytes, begin: int, end: int) -> None:
        is_range = handler.headers.get("Range") is not None
        headers = range_header(begin, end, len(data)) if is_range else {}
        handler.start(206 if is_range else 200, end - begin, headers)
        handler.wfile.write(data[begin:end][:count])
        handler.wfile.flush()
        handler.registry.released.wait(10)
        handler.cut()

    return fault


def drip(seconds: float) -> Fault:
    """Announce the full length, and send a byte each time this many seconds have passed."""

    def fault(handler: Handler, data: bytes, begin: int, end: int) -> None:
        is_range = handler.headers.get("Range") is not None
        handler.start(206 if is_range else 200, end - begin, range_header(begin, end, len(data)))
        for byte in data[begin:end]:
            if handler.registry.released.wait(seconds):
                return
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()

    return fault


def answer(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Fault:
    """Send any other reply."""

    def fault(handler: Handler, data: bytes, begin: int, end: int) -> None:
        handler.reply(status, body, headers)

    return fault


def shifted(handler: Handler, data: bytes, begin: int, end: int) -> None:
    """Send another range than requested, and declare it."""
    handler.reply(206, data[begin + 1 : end], range_header(begin + 1, end, len(data)))


def swapped(handler: Handler, data: bytes, begin: int, end: int) -> None:
    """Declare the correct range, and send other bytes."""
    handler.serve(data.translate(bytes(reversed(range(256)))), begin, end)


def longer(handler: Handler, data: bytes, begin: int, end: int) -> None:
    """Send more bytes than exist."""
    handler.reply(200, data + b"more")
