"""axe-core finds no fault in any view of the chat, in light and dark, at a desk and on a phone."""

from __future__ import annotations

import json
import threading

import pytest

from chaski.errors import ChaskiError
from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.server.thinker import WEATHER
from tests.web.accessible import Seen, axe, faults, seen, viewport
from tests.web.conftest import PHONE, ask, ended
from tests.web.mcp_server import McpServer
from tests.web.test_chat import PIXEL, RICH
from tests.web.test_mcp import add, calls, close
from tests.web.test_schema_editor import PERSON, edit

__all__ = ["axe", "seen", "viewport"]

pytestmark = pytest.mark.slow


def test_everything_is_accessible(fake: Running, script: Script, seen: Seen, axe: str) -> None:
    page = seen(fake)
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


def test_tools_of_servers_are_accessible(
    allowing: Running, weather: McpServer, script: Script, seen: Seen, axe: str
) -> None:
    weather.by_event, weather.hold = True, threading.Event()
    page = seen(allowing, reaches=(weather.origin,))
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_text("This page may reach the servers at").wait_for()
    page.get_by_label("Address").fill("ftp://elsewhere.example")
    page.get_by_label("Authorization header").fill("Bearer x")
    page.get_by_role("button", name="Add the server").click()
    page.locator(".servers .problem").wait_for()
    assert faults(page, axe) == []
    page.get_by_label("Authorization header").fill("")
    add(page, weather.url).get_by_text("1 tool").click()
    add(page, "https://elsewhere.example", "Bearer x")
    page.get_by_text("has not allowed it").wait_for()
    assert faults(page, axe) == []
    close(page)
    script.pieces = calls("weather", city="Cusco")
    weather.results.clear()
    ask(page, "x")
    page.get_by_role("button", name="Run once").click()
    page.get_by_role("region", name="Call of weather").get_by_role("button", name="Stop").wait_for()
    assert faults(page, axe) == []
    weather.hold.set()
    page.get_by_text("refused the request: unknown tool").wait_for()
    assert faults(page, axe) == []


def test_the_editor_of_schemas_is_accessible(fake: Running, seen: Seen, axe: str) -> None:
    page = seen(fake)
    editor = edit(page, PERSON)
    assert faults(page, axe) == []
    editor.get_by_role("button", name="Add a field", exact=True).click()
    editor.get_by_text("Give this field a name.").wait_for()
    assert faults(page, axe) == []
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    editor.get_by_label("As JSON schema").fill('{"anyOf": []}')
    assert faults(page, axe) == []


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
    page.get_by_text("x.txt").click()
    assert faults(page, axe) == []
    script.hold.set()
    script.hold = None
    ended(page)
    page.get_by_role("button", name="Edit the question").click()
    assert faults(page, axe) == []
    script.pieces = ("a line\n\n" * 60,)
    page.get_by_label("Edited question").fill("مرحبا again")
    page.keyboard.press("Enter")
    page.locator(".asked .branches").get_by_text("2 / 2").wait_for()
    ended(page)
    page.get_by_role("button", name="Delete the question").click()
    page.get_by_role("dialog").wait_for()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    page.locator(".scroller").evaluate("box => box.scrollTo(0, 0)")
    page.get_by_role("button", name="To the end").wait_for()
    assert faults(page, axe) == []
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
    if viewport is PHONE:
        page.get_by_role("button", name="Menu").click()
    # A file that is still being read.
    page.evaluate(
        "{ window.streamed = File.prototype.stream; File.prototype.stream = () => new ReadableStream(); }"
    )
    page.get_by_label("File of conversations").set_input_files(broken)
    page.get_by_text("Reading x.json…").wait_for()
    assert faults(page, axe) == []
    page.evaluate("void (File.prototype.stream = window.streamed)")
    page.get_by_label("File of conversations").set_input_files(broken)
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
