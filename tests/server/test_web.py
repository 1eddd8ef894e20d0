"""The page's files: only for browsers, compressed, cached by browsers, and under a strict policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running

BUNDLE = files("chaski.server.web") / "bundle"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
NAMES = sorted(each.name for each in BUNDLE.iterdir())


@pytest.mark.parametrize("accept", [{}, {"accept": "*/*"}, {"accept": "application/json"}])
def test_clients_of_the_api_get_what_they_know(server: Running, accept: dict[str, str]) -> None:
    reply = server.get("/", **accept)
    assert (reply.status, reply.body) == (200, b"Ollama is running")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert "content-security-policy" not in reply.headers
    head = server.ask("HEAD", "/", headers=accept)
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "17")


def test_browsers_get_the_page(server: Running) -> None:
    reply = server.get("/", **BROWSER)
    assert reply.status == 200
    assert reply.body == (BUNDLE / "index.html").read_bytes()
    assert reply.headers["cache-control"] == "no-cache"
    assert "accept" in reply.headers["vary"].lower()
    again = server.get("/", **BROWSER, **{"if-none-match": reply.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    # The page itself contains only names of this server's files and of its own parts.
    text = reply.body.decode()
    asked = {name for name in re.findall(r'(?:src|href)="([^"]*)"', text) if not name.startswith("#")}
    assert asked <= {f"/web/{name}" for name in NAMES}
    assert not re.search(r"<script[^>]*>[^<]|\son\w+=|style=", text)
    (styles,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert set(re.findall(r'url\("?(/.*?)"?\)', styles)) <= {f"/web/{name}" for name in NAMES}
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    assert f"; style-src 'sha256-{digest}'; " in reply.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/", f"/web/{NAMES[0]}", *(f"/web/{n}" for n in NAMES if "main" in n)])
def test_every_file_has_the_policy(server: Running, path: str) -> None:
    headers = server.get(path, **BROWSER).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["style-src"].startswith("'sha256-")
    assert policy["worker-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "pdf-worker"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_operator_allows_mcp_servers(models: Path) -> None:
    """The policy names them for the page and the code that it loads. The rest of it does not change."""
    reached = "http://localhost:8000", "https://tools.example"
    with running(Settings(address=SOMEWHERE, mcp_servers=reached), models) as server:
        for path in ("/", f"/web/{NAMES[0]}"):
            policy = server.get(path, **BROWSER).headers["content-security-policy"]
            assert "connect-src 'self' http://localhost:8000 https://tools.example; " in f"{policy}; "
            assert policy.count("http") == 2
            assert "script-src 'self';" in policy


@pytest.mark.parametrize("name", NAMES)
def test_files_are_kept_and_compressed(server: Running, name: str) -> None:
    whole = (BUNDLE / name).read_bytes()
    plain = server.get(f"/web/{name}")
    assert plain.body == whole
    assert "immutable" in plain.headers["cache-control"]
    short = server.get(f"/web/{name}", **{"accept-encoding": "gzip, deflate"})
    if name.endswith(("woff2", "bcmap")):
        assert "content-encoding" not in short.headers
    else:
        assert short.headers["content-encoding"] == "gzip"
        assert gzip.decompress(short.body) == whole
    assert server.get(f"/web/{name}", **{"if-none-match": plain.headers["etag"]}).status == 304


@pytest.mark.parametrize(
    ("path", "media_type", "sizes"),
    [
        ("/favicon.ico", "image/x-icon", {(16, 16), (32, 32), (48, 48)}),
        ("/apple-touch-icon.png", "image/png", {(180, 180)}),
        ("/apple-touch-icon-precomposed.png", "image/png", {(180, 180)}),
    ],
)
def test_icons_that_browsers_ask_for(
    server: Running, path: str, media_type: str, sizes: set[tuple[int, int]]
) -> None:
    """They have the colour of the icon that the page links to."""
    reply = server.get(path, accept="image/*")
    assert (reply.status, reply.headers["content-type"]) == (200, media_type)
    image = Image.open(io.BytesIO(reply.body))
    assert set(image.info.get("sizes", {image.size})) == sizes
    svg = next((BUNDLE / name).read_text() for name in NAMES if name.endswith(".svg"))
    color = image.convert("RGB").crop((image.width // 2, 3, image.width // 2 + 1, 4)).tobytes()
    assert f'fill="#{color.hex()}"' in svg
    assert server.get(path, **{"if-none-match": reply.headers["etag"]}).status == 304


def test_crawlers_are_asked_to_leave(server: Running) -> None:
    assert server.get("/robots.txt").body == b"User-agent: *\nDisallow: /\n"


def test_all_of_it_is_small(server: Running) -> None:
    sizes = {name: len(server.get(f"/web/{name}", **{"accept-encoding": "gzip"}).body) for name in NAMES}
    reader = {name for name in NAMES if name.startswith(("pdf-worker-", "read-"))}
    maps = {name for name in NAMES if name.endswith(".bcmap")}
    assert sum(sizes[name] for name in reader) < 600_000  # requested when a PDF is attached
    assert max(sizes[name] for name in maps) < 60_000  # requested one by one
    assert sum(sizes[name] for name in maps) < 600_000
    assert sum(sizes[name] for name in {*NAMES} - reader - maps) < 600_000


@pytest.mark.parametrize("name", ["nothing.js", "..%2Ffiles.py", "%2e%2e%2ffiles.py", "files.py", "a/b.js"])
def test_no_other_file_is_served(server: Running, name: str) -> None:
    assert server.get(f"/web/{name}").status == 404


def test_the_page_comes_without_a_key_and_the_rest_does_not(models: Path) -> None:
    with running(Settings(address=SOMEWHERE, api_keys=("k",)), models) as guarded:
        assert guarded.get("/", **BROWSER).body.startswith(b"<!doctype html>")
        assert guarded.get(f"/web/{NAMES[0]}").status == 200
        assert guarded.get("/favicon.ico").status == guarded.get("/robots.txt").status == 200
        for path in ("/api/tags", "/web", "/webs/x"):
            assert guarded.get(path).status == 401
        assert guarded.get("/", **BROWSER, host="evil.example").status == 403
        assert guarded.get(f"/web/{NAMES[0]}", origin="https://evil.example").status == 403
