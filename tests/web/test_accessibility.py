"""axe-core finds no fault, in light and dark, on every view of the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import ChaskiError
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.thinker import WEATHER
from tests.web.conftest import DESKTOP, PHONE, Open, ask, ended
from tests.web.mcp_server import McpServer
from tests.web.test_chat import PIXEL, RICH
from tests.web.test_mcp import add, calls, close
from tests.web.test_schema_editor import PERSON, edit

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run make web")
    return AXE.read_text()


def faults(page: Any, axe: str) -> list[tuple[str, list[str]]]:
    """Return the rules that the page breaks, with the elements that break them."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    # The colors of elements that still fade in or out are not those that are seen.
    page.evaluate(
        """() => Promise.allSettled(document.getAnimations()
            .filter(each => Number.isFinite(each.effect.getComputedTiming().endTime))
            .map(each => each.finished))"""
    )
    found = page.evaluate("axe.run()")["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_accessible(
    fake: Running, script: Script, open_page: Open, axe: str, scheme: str, viewport: dict[str, int]
) -> None:
    page = open_page(fake, color_scheme=scheme, viewport=viewport)
    page.get_by_role("textbox", name="Message").wait_for()
    assert faults(page, axe) == []
    script.pieces = (
        "<think>",
        "hm",
        "</think>",
        RICH + "\n![x](https://example.org/a.png) [y](javascript:z)",
    )
    ask(page, "show all")
    ended(page)
    assert faults(page, axe) == []
    page.get_by_text("Thoughts").click()
    page.locator(".figures summary").click()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("JSON schema").fill("{")
    assert faults(page, axe) == []
    page.goto(fake.url + "/#/models")
    page.get_by_text("Details").first.click()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Delete thinker:latest").click()
    assert faults(page, axe) == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tools_of_servers_are_accessible(
    allowing: Running,
    weather: McpServer,
    script: Script,
    open_page: Open,
    axe: str,
    scheme: str,
    viewport: dict[str, int],
) -> None:
    page = open_page(allowing, reaches=(weather.origin,), color_scheme=scheme, viewport=viewport)
    add(page, weather.url).get_by_text("1 tool").click()
    add(page, "https://elsewhere.example", "Bearer x")
    page.get_by_text("has not allowed it").wait_for()
    assert faults(page, axe) == []
    close(page)
    script.pieces = calls("weather", city="Cusco")
    weather.results.clear()
    ask(page, "x")
    page.get_by_role("button", name="Run once").click()
    page.get_by_text("refused the request: unknown tool").wait_for()
    assert faults(page, axe) == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_editor_of_schemas_is_accessible(
    fake: Running, open_page: Open, axe: str, scheme: str, viewport: dict[str, int]
) -> None:
    page = open_page(fake, color_scheme=scheme, viewport=viewport)
    editor = edit(page, PERSON)
    assert faults(page, axe) == []
    editor.get_by_role("button", name="Add a field", exact=True).click()
    editor.get_by_text("Give this field a name.").wait_for()
    assert faults(page, axe) == []
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    editor.get_by_label("As JSON schema").fill('{"anyOf": []}')
    assert faults(page, axe) == []


Seen = Callable[..., Any]


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def viewport(request: pytest.FixtureRequest) -> dict[str, int]:
    found: dict[str, int] = request.param
    return found


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, open_page: Open, viewport: dict[str, int]) -> Seen:
    """Open the page of a server in a theme and a size; phones have a touch screen."""
    is_phone = viewport is PHONE

    def seen(server: Running, path: str = "/") -> Any:
        options = {"viewport": viewport, "has_touch": is_phone, "is_mobile": is_phone}
        return open_page(server, path, color_scheme=request.param, **options)

    return seen


def test_chats_in_all_states_are_accessible(fake: Running, script: Script, seen: Seen, axe: str) -> None:
    page = seen(fake)
    image = {"name": "x.png", "mimeType": "image/png", "buffer": PIXEL}
    text = {"name": "x.txt", "mimeType": "text/plain", "buffer": b"x"}
    page.get_by_label("Files", exact=True).set_input_files([image, text])
    page.get_by_role("button", name="Remove x.txt").wait_for()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Remove image 1").click()
    script.hold = threading.Event()
    ask(page, "مرحبا")
    page.get_by_role("button", name="Stop").wait_for()
    assert faults(page, axe) == []
    script.hold.set()
    script.hold = None
    ended(page)
    page.get_by_role("button", name="Edit the question").click()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    script.pieces = ("a part", ChaskiError("the processor melted"))
    ask(page, "again")
    page.get_by_text("the processor melted").wait_for()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Settings", exact=True).click()
    assert faults(page, axe) == []
    page.get_by_label("Tools that the model may call").fill(json.dumps([WEATHER]))
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Temperature").press("Tab")
    assert faults(page, axe) == []
    page.get_by_role("button", name="Close the settings").click()
    script.pieces = calls("weather", city="Cusco")
    ask(page, "How is the weather?")
    page.get_by_label("Result of weather").fill("sun")
    assert faults(page, axe) == []


def test_the_sidebar_is_accessible(fake: Running, seen: Seen, viewport: dict[str, int], axe: str) -> None:
    page = seen(fake)
    ask(page, "שלום, this is a question with a long name that does not fit")
    ended(page)
    broken = {"name": "x.json", "mimeType": "application/json", "buffer": b"[1]"}
    page.get_by_label("File of conversations").set_input_files(broken)
    if viewport is PHONE:
        page.get_by_role("button", name="Menu").click()
    page.get_by_text("is not an export").wait_for()
    assert faults(page, axe) == []
    page.get_by_label("Search conversations").fill("nothing like it")
    assert faults(page, axe) == []
    page.get_by_label("Search conversations").fill("")
    page.locator(".entry").get_by_role("button", name="Rename").click()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    page.locator(".entry").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").wait_for()
    assert faults(page, axe) == []


def test_dialogs_of_models_are_accessible(fake: Running, seen: Seen, axe: str) -> None:
    page = seen(fake, "/#/models")
    for button in ("Make a model from thinker:latest", "Copy thinker:latest"):
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").wait_for()
        assert faults(page, axe) == []
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")


@pytest.fixture(scope="module")
def locked(fake: Running, script: Script, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server that asks for a key."""
    settings = Settings(address=SOMEWHERE, api_keys=("secret",))
    with running(settings, tmp_path_factory.mktemp("locked"), script.open) as server:
        yield server


def test_the_question_for_a_key_is_accessible(locked: Running, seen: Seen, axe: str) -> None:
    page = seen(locked)
    page.get_by_label("API key").wait_for()
    assert faults(page, axe) == []
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    page.get_by_text("The server does not know this key.").wait_for()
    assert faults(page, axe) == []


def test_live_is_accessible(guided: Running, seen: Seen, axe: str) -> None:
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    page = seen(guided, "/#/live")
    page.get_by_label("The cache of").wait_for()
    page.locator(".scroller").evaluate("scroller => scroller.scrollTo(0, 9999)")
    page.get_by_role("list", name="Legend").wait_for()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Show the cells of sequence 0").click()
    assert faults(page, axe) == []
