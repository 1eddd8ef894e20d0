"""Spellings that other servers accept: they are understood here, or refused with a clear error."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chaski.errors import OptionError
from chaski.server.answering.live import LiveService
from chaski.server.dialects.common.images import read_base64
from chaski.server.dialects.openai.requests import read_chat
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running


def picture() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((40, 40), 99).save(file, "PNG")
    return file.getvalue()


SPELLINGS: dict[str, Callable[[bytes], str]] = {
    "plain": lambda data: base64.b64encode(data).decode(),
    "lines": lambda data: base64.encodebytes(data).decode(),
    "carriage returns": lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
    "blanks around it": lambda data: f"  {base64.b64encode(data).decode()} ",
    "the alphabet of URLs": lambda data: base64.urlsafe_b64encode(data).decode(),
    "no padding": lambda data: base64.b64encode(data).decode().rstrip("="),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_base64(name: str) -> None:
    data = picture()
    data += bytes(-len(data) % 3 + 1)  # so that there is padding
    assert read_base64(SPELLINGS[name](data), "images[0]") == data


@pytest.mark.parametrize("text", ["%%%%", "a", "data:image/png,abc", "data:image/png;base64," * 5000])
def test_no_base64(text: str) -> None:
    with pytest.raises(OptionError):
        read_base64(text, "images[0]")


PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
        {"type": "function", "name": "f", "parameters": PARAMETERS},
        {"name": "f", "input_schema": PARAMETERS},
    ],
)
def test_tools_in_forms_of_other_dialects(tool: dict[str, object]) -> None:
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    function = request.tools[0]["function"]
    assert (function["name"], function["parameters"]) == ("f", PARAMETERS)


def test_a_tool_without_a_name() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
    with pytest.raises(OptionError, match=r"tools\[0\]\.name is missing"):
        read_chat(body)


def test_a_blob_that_is_there_may_be_sent_again(server: Running) -> None:
    data = b"a" * 5_000_000
    path = f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}"
    assert [server.post(path, data).status for _ in range(3)] == [201, 200, 200]


def test_origins(tmp_path: Path) -> None:
    for origins, origin in ((("*",), "null"), (("https://a.example/",), "https://a.example")):
        with running(Settings(address=SOMEWHERE, origins=origins), tmp_path) as server:
            assert server.get("/api/version", Origin=origin).status == 200
            assert server.get("/api/version", Origin="").status == 403


@pytest.mark.parametrize("query", ["", "?stream=1"])
def test_sequences_of_others_are_for_administrators(
    models: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    async def figures(service: LiveService) -> dict[str, Any]:
        return {"models": [{"name": "helper", "sequences": [{"tokens": 7}]}, {"name": "other"}]}

    monkeypatch.setattr(LiveService, "figures", figures)
    settings = Settings(address=SOMEWHERE, api_keys=("user",), admin_keys=("admin",))
    with running(settings, models) as server:
        for key, sequences in (("user", []), ("admin", [{"tokens": 7}])):
            headers = {"Authorization": f"Bearer {key}"}
            with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
                connection.request("GET", f"/api/live{query}", headers=headers)
                found = json.loads(connection.getresponse().readline())["models"]
            assert found == [{"name": "helper", "sequences": sequences}, {"name": "other"}]


def test_what_a_key_of_a_user_may_see(models: Path) -> None:
    settings = Settings(address=SOMEWHERE, api_keys=("user",), admin_keys=("admin",))
    with running(settings, models) as server:
        user, admin = "Bearer user", "Bearer admin"
        body = {"model": "helper", "keep_alive": -1, "prompt": "Hi", "stream": False, "raw": True}
        reply = server.post("/api/generate", body | {"options": {"num_predict": 1}}, Authorization=user)
        assert reply.status == 200
        assert "field keep_alive" in reply.headers["x-chaski-ignored"]
        assert server.services.models.loaded[0].keep_alive == settings.keep_alive
        stop = {"model": "helper", "keep_alive": 0}
        assert server.post("/api/generate", stop, Authorization=user).status == 403
        assert len(server.services.models.loaded) == 1
        assert server.get("/health").json == {"status": "ok"}
        assert server.get("/health", Authorization=user).json["models"]
        assert server.get("/api/live/cache", Authorization=user).status == 403
        assert server.get("/api/live/cache", Authorization=admin).status == 200
