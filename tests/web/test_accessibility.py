"""axe-core finds no fault, in light and dark, on every view of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import DESKTOP, PHONE, Open, ask, ended
from tests.web.mcp_server import McpServer
from tests.web.test_chat import RICH
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
    page.wait_for_timeout(300)
    page.evaluate(axe)
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
