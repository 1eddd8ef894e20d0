"""Images for a real vision model, and a pull from a real registry that a reload interrupts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.image.pictures import png
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until
from tests.store.fake_registry import FakeRegistry, range_header
from tests.tiny_llama import write_tiny_llama
from tests.tiny_vision import DATA
from tests.web.conftest import Open, ask, choose_model, ended, picture

pytestmark = pytest.mark.slow


@pytest.fixture
def seeing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Run a server with a small random model that accepts images."""
    monkeypatch.setenv("CHASKI_THREADS", "1")
    options = {"temperature": 0.0, "num_predict": 12}
    recipe = Recipe(sources=[DATA / "mistral3.gguf"], parameters=options)
    list(create(Store(tmp_path), ModelName.parse("seer"), recipe))
    with running(Settings(address=SOMEWHERE, parallel=1), tmp_path) as server:
        yield server


def test_a_chat_with_images(seeing: Running, open_page: Open) -> None:
    images = [png(96, 131), png(37, 53)]
    page = open_page(seeing)
    choose_model(page, "seer:latest")
    files = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": data} for n, data in enumerate(images)]
    page.get_by_label("Files", exact=True).set_input_files(files)
    page.get_by_alt_text("Attached image 2").wait_for()
    page.get_by_role("button", name="Remove image 2").click()
    ask(page, "What is it?")
    first = ended(page).locator(".markdown").inner_text()
    picture(page, "images")
    message = {"role": "user", "content": "What is it?", "images": [b64encode(images[0]).decode()]}
    body = {"model": "seer", "messages": [message], "stream": False}
    told = seeing.post("/api/chat", body).json
    blind = seeing.post("/api/chat", body | {"messages": [message | {"images": []}]}).json
    assert told["prompt_eval_count"] > blind["prompt_eval_count"]
    assert "".join(first.split()) == "".join(told["message"]["content"].split())
    page.locator(".answered .figures summary").click()
    assert f"{told['prompt_eval_count']}" in page.locator(".figures dl").inner_text()


def test_a_pull_goes_on_after_a_reload(tmp_path: Path, open_page: Open) -> None:
    """The registry stops halfway until the page was loaded again. Then only the rest is downloaded."""
    data = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()

    def stop_halfway(handler: Any, data: bytes, begin: int, end: int) -> None:
        registry = handler.registry
        registry.faults.append(stop_halfway)
        if len(data) < 10_000 or registry.released.is_set():
            handler.serve(data, begin, end)
            return
        is_range = handler.headers.get("Range") is not None
        headers = range_header(begin, end, len(data)) if is_range else {}
        handler.start(206 if is_range else 200, end - begin, headers)
        handler.wfile.write(data[begin : (begin + len(data)) // 2])
        handler.wfile.flush()
        registry.released.wait(60)
        handler.cut()

    settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
    with FakeRegistry().running() as registry, running(settings, tmp_path / "s", Script().open) as server:
        registry.put({"model": data})
        registry.faults.append(stop_halfway)
        name = f"http://{registry.host}/me/model:1"
        page = open_page(server, "/#/models")
        # The registry of the test has no certificate.
        insecure = {"model": name, "insecure": True}
        page.route("**/api/pull", lambda route: route.continue_(post_data=insecure))
        page.get_by_label("Name of a model to pull").fill(name)
        page.keyboard.press("Enter")
        pulled = page.get_by_role("group", name=f"Pull of {name}")
        pulled.get_by_text("KB, pulling").wait_for()
        wait_until(lambda: page.evaluate("document.querySelector('progress').value") > 100_000)
        picture(page, "pull")
        page.reload()
        pulled.wait_for()
        registry.released.set()
        pulled.wait_for(state="detached", timeout=20_000)
        page.get_by_role("button", name="Delete").wait_for()
        # The first model that chats is the one of new conversations.
        page.get_by_role("link", name="New chat").click()
        page.get_by_label("Model", exact=True).get_by_text("model:1").wait_for()
        (blob,) = (digest for digest, held in registry.blobs.items() if held == data)
        asked = [headers.get("Range") for method, path, headers in registry.requests if path.endswith(blob)]
        assert asked[0] in (None, f"bytes=0-{len(data) - 1}")
        assert len(asked) > 1
        assert all(
            str(each).startswith("bytes=") and not str(each).startswith("bytes=0-") for each in asked[1:]
        )
