"""A real browser with a real server. `make test-web` installs playwright; Debian has `chromium`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE, models
from tests.server.huge_model import huge
from tests.server.running import Running, running
from tests.server.thinker import fake, fresh, script
from tests.web.mcp_server import allowing, thinking, weather

__all__ = ["allowing", "fake", "fresh", "huge", "models", "script", "thinking", "weather"]

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run make test-web")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium is installed; CHROMIUM names one that is elsewhere")
    with api.sync_playwright() as driver:
        # The browser's sandbox cannot start as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open the page of a server; finally check that no request was blocked or went elsewhere.

    reaches   further addresses that requests may reach
    """
    contexts: list[Any] = []
    faults: list[str] = []
    elsewhere: list[str] = []

    def open_page(server: Running, path: str = "/", reaches: tuple[str, ...] = (), **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", **options})
        context.set_default_timeout(30_000)  # both cores may be busy with other tests
        contexts.append(context)

        def see(request: Any) -> None:
            if not request.url.startswith((server.url, "data:", "blob:", *reaches)):
                elsewhere.append(request.url)

        context.on("request", see)
        context.on(
            "console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None
        )
        context.on("weberror", lambda error: faults.append(str(error.error)))
        page = context.new_page()
        page.goto(server.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    assert elsewhere == []


@pytest.fixture(scope="module")
def guided(models: Path) -> Iterator[Running]:
    """Run a server with the bundled model."""
    with running(Settings(address=SOMEWHERE, parallel=2), models) as server:
        yield server


def second_tab(page: Any) -> Any:
    """Open the place of a page again, in another tab of its browser."""
    other = page.context.new_page()
    other.goto(page.url)
    return other


def ask(page: Any, text: str) -> None:
    """Type and send a question once the page knows its models."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.locator("button[aria-label=Send]:enabled").wait_for()
    page.keyboard.press("Enter")


def choose_model(page: Any, name: str) -> None:
    """Choose the model of the shown conversation."""
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option").filter(has=page.get_by_text(name, exact=True)).click()


def picture(page: Any, name: str) -> None:
    """Take the picture for the docs, if PICTURES names a folder for it."""
    if folder := os.environ.get("PICTURES"):
        page.wait_for_timeout(300)
        image = Image.open(BytesIO(page.screenshot()))
        image.quantize(128, dither=Image.Dither.NONE).save(Path(folder) / f"{name}.png", optimize=True)


def saved(page: Any, count: int, leaf: str = "") -> None:
    """Wait until the browser's database has this many messages, and a shown branch that ends with `leaf`."""
    page.wait_for_function(
        """([count, text]) => new Promise((resolve, reject) => {
            const opening = indexedDB.open("chaski");
            opening.onerror = () => reject(opening.error);
            opening.onsuccess = () => {
                const database = opening.result;
                const reading = database.transaction(["conversations", "messages"]);
                const heads = reading.objectStore("conversations").getAll();
                const messages = reading.objectStore("messages").getAll();
                reading.oncomplete = () => {
                    database.close();
                    const leaves = new Set(heads.result.map(({ leaf }) => leaf));
                    const ends = messages.result.filter(({ id }) => leaves.has(id));
                    const isEnd = ends.some(({ content }) => content.includes(text));
                    resolve(messages.result.length === count && isEnd);
                };
            };
        })""",
        arg=[count, leaf],
    )


def until(page: Any, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for thirty seconds at most. The browser's events arrive meanwhile."""
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(50)
    assert condition()


def answers(page: Any) -> Any:
    return page.locator("article.answered")


def ended(page: Any, count: int = 1) -> Any:
    """Wait until the shown branch has this many complete answers, and return them."""
    page.locator("article.answered[aria-busy=false]").nth(count - 1).wait_for()
    page.locator("article.answered[aria-busy=true]").wait_for(state="detached")
    return answers(page)
