"""axe-core finds no fault in rare states of the chat, nor in the other pages."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.huge_model import HUGE
from tests.server.running import Running, running
from tests.web.accessible import Seen, axe, faults, seen, viewport
from tests.web.conftest import ask, choose_model, ended, second_tab
from tests.web.gate import gate_to
from tests.web.test_chat import PIXEL, held
from tests.web.test_lost_server import LOST, stepped
from tests.web.test_making import workshop
from tests.web.test_models import DIGEST, lines
from tests.web.test_tokens import asked as asked_for_tokens

__all__ = ["axe", "held", "seen", "stepped", "viewport", "workshop"]

pytestmark = pytest.mark.slow


def turn(id: str, parent: str | None, role: str, content: str, **more: Any) -> dict[str, Any]:
    model = {"model": "thinker:latest"} if role == "assistant" else {}
    return {"id": id, "parent": parent, "role": role, "content": content, "created": 1, **model, **more}


def imported(page: Any, *turns: dict[str, Any]) -> None:
    """Import a conversation, and show it."""
    chat = {"id": "c1", "title": "Old roads", "created": 1, "updated": 2, "model": "thinker:latest"}
    chat |= {"settings": {}, "messages": {each["id"]: each for each in turns}, "leaf": turns[-1]["id"]}
    data = json.dumps([chat]).encode()
    file = {"name": "x.json", "mimeType": "application/json", "buffer": data}
    page.get_by_label("File of conversations").set_input_files(file)
    page.get_by_text("1 imported.").wait_for(state="attached")
    page.goto(page.url.partition("#")[0] + "#/chat/c1")
    page.get_by_role("heading", name="Old roads").wait_for()


def test_tokens_with_their_probabilities(guided: Running, seen: Seen, axe: str) -> None:
    page = seen(guided)
    asked_for_tokens(page)
    page.get_by_role("button", name="Tokens").click()
    page.get_by_text("Token 1 of 24").wait_for()
    assert faults(page, axe) == []
    page.locator(".token").nth(5).click()
    page.get_by_text("Token 6 of 24").wait_for()
    assert faults(page, axe) == []


def test_turns_of_tools_images_and_files(fake: Running, seen: Seen, axe: str) -> None:
    picture = base64.b64encode(PIXEL).decode()
    calls = [{"function": {"name": "weather", "arguments": {"city": "Cusco"}}}] * 2
    file = {"name": "notes.txt", "text": "the notes"}
    tokens = [{"text": "sun", "logprob": logprob} for logprob in (-0.001, -5.0)]
    page = seen(fake)
    imported(
        page,
        turn("a", None, "user", "See?", images=[picture], files=[file]),
        turn("b", "a", "assistant", "Wait.", thinking="hm", calls=calls, remote={}),
        turn("c", "b", "tool", "sun", toolName="weather", images=[picture]),
        turn("d", "c", "tool", "rain", toolName="weather"),
        turn("e", "d", "assistant", "sun", tokens=tokens, error="It melted."),
    )
    page.get_by_text("thinker:latest sees no images").wait_for()
    for text in ("notes.txt", "Thoughts", "Result of weather"):
        page.locator("summary").get_by_text(text).first.click()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Delete the result").first.click()
    page.get_by_role("dialog").wait_for()
    assert faults(page, axe) == []


def test_a_description_that_is_lost_is_asked_for_again(fake: Running, seen: Seen) -> None:
    page = seen(fake)
    page.route("**/api/show", lambda route: route.abort(), times=1)
    picture = base64.b64encode(PIXEL).decode()
    result = turn("b", "a", "tool", "sun", toolName="weather", images=[picture])
    with page.expect_event("requestfailed"):
        imported(page, turn("a", None, "user", "See?"), result)
    page.get_by_text("thinker:latest sees no images").wait_for()


def test_an_answer_while_it_thinks_and_one_that_was_cut(
    fake: Running, script: Script, stepped: threading.Event, seen: Seen, axe: str
) -> None:
    script.pieces, script.reason = ("<think>hm", "</think>", "a part"), "length"
    page = seen(fake)
    ask(page, "x")
    page.get_by_text("Thinking…").click()
    assert faults(page, axe) == []
    stepped.set()
    ended(page)
    page.get_by_role("button", name="Continue").wait_for()
    assert faults(page, axe) == []


def test_a_server_that_is_gone(fake: Running, held: threading.Event, seen: Seen, axe: str) -> None:
    with gate_to(fake.port) as gate:
        page = seen(gate)
        ask(page, "count")
        page.get_by_role("button", name="Stop").wait_for()
        gate.close()
        page.get_by_text(LOST).wait_for()
        assert faults(page, axe) == []
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        assert faults(page, axe) == []
        page.evaluate("void (location.hash = '#/models')")
        page.get_by_text("This page cannot be loaded, because the server cannot be reached.").wait_for()
        assert faults(page, axe) == []


def test_attached_files_that_are_read_and_refused(fake: Running, seen: Seen, axe: str) -> None:
    page = seen(fake)
    image = {"name": "x.png", "mimeType": "image/png", "buffer": PIXEL}
    broken = {"name": "x.bin", "mimeType": "application/octet-stream", "buffer": bytes(range(256)) * 9}
    page.get_by_label("Files", exact=True).set_input_files([broken, image])
    page.locator(".composer .problem").wait_for()
    page.locator(".misfits").wait_for()
    assert faults(page, axe) == []
    page.evaluate("void (Blob.prototype.text = () => new Promise(() => {}))")
    page.get_by_label("Files", exact=True).set_input_files([broken])
    page.get_by_text("Reading…").wait_for()
    assert faults(page, axe) == []


def test_sizes_that_do_not_fit(huge: Running, seen: Seen, axe: str) -> None:
    page = seen(huge)
    choose_model(page, "huge:latest")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Context").fill(str(HUGE))
    page.get_by_role("button", name="Close the settings").click()
    page.get_by_role("alert").filter(has_text="Does not fit").wait_for()
    assert faults(page, axe) == []
    page.goto(huge.url + "/#/models")
    card = page.locator(".models .card").filter(has_text="huge:latest")
    card.get_by_text("Fits: ").click()
    card.get_by_label("Context").fill(str(HUGE))
    card.get_by_text("Does not fit: it needs").wait_for()
    assert faults(page, axe) == []


def test_the_choice_of_a_model(fake: Running, seen: Seen, axe: str) -> None:
    page = seen(fake)
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="thinker:latest").wait_for()
    assert faults(page, axe) == []
    page.get_by_label("Search models").fill("nothing like it")
    page.get_by_text("No model here matches").wait_for()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    choose_model(page, "guide:latest")
    page.get_by_role("heading", name="Ask about chaski").wait_for()
    assert faults(page, axe) == []
    page.locator(".skip").focus()
    assert faults(page, axe) == []


def test_a_server_with_the_guide_only(
    tmp_path_factory: pytest.TempPathFactory, script: Script, seen: Seen, axe: str
) -> None:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("empty"), script.open) as server:
        page = seen(server, "/api/version")
        page.route("**/api/suggestions", lambda route: None)  # not answered yet
        page.goto(server.url)
        page.get_by_text("Looking which models fit this machine").wait_for()
        assert faults(page, axe) == []
        page.unroute("**/api/suggestions")
        page.reload()
        page.get_by_role("button", name="Pull Gemma 3 1B").wait_for()
        assert faults(page, axe) == []


def test_notices_above_the_page(fake: Running, script: Script, seen: Seen, axe: str) -> None:
    page = seen(fake)
    ask(page, "count")
    ended(page)
    other = second_tab(page)
    other.locator("[aria-label='Delete count']").dispatch_event("click")  # a phone hides it
    other.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("“count” was deleted in another tab.").wait_for()
    assert faults(page, axe) == []
    other.goto(fake.url + "/api/version")
    other.evaluate("void indexedDB.open('chaski', 99)")
    page.get_by_role("button", name="Load again").wait_for()
    assert faults(page, axe) == []


def test_pulls_and_models_to_get(fake: Running, seen: Seen, axe: str) -> None:
    page = seen(fake, "/#/models")
    half = {"status": "pulling aaa", "digest": DIGEST, "total": 4_000_000, "completed": 2_000_000}
    failed = {"error": "the disk is full"}
    bodies = {"big:7b": lines(half), "small:1b": lines(half, failed)}

    def pull(route: Any) -> None:
        body = bodies[route.request.post_data_json["model"]]
        route.fulfill(body=body, content_type="application/x-ndjson")

    page.route("**/api/pull", pull)
    field = page.get_by_label("Name of a model to pull")
    for name in bodies:
        field.fill(name)
        page.get_by_text(f"This pulls {name}.").wait_for()
        field.press("Enter")
        page.get_by_role("group", name=f"Pull of {name}").wait_for()
    page.get_by_text("the disk is full").wait_for()
    page.get_by_text("the connection was lost; trying again").wait_for()
    page.get_by_text("Models to get").click()
    page.get_by_role("button", name="Pull Gemma 3 1B").wait_for()
    assert faults(page, axe) == []
    field.fill("a model that can see")
    field.press("Enter")
    page.get_by_text("names no model; give a name such as").wait_for()
    page.get_by_text("Details").first.click()
    page.locator(".models .file summary").first.click()
    assert faults(page, axe) == []


def test_dialogs_of_models_and_adapters(workshop: Running, seen: Seen, axe: str) -> None:
    page = seen(workshop, "/#/models")
    page.get_by_role("button", name="Make a model from base:latest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("base")
    dialog.get_by_text("base:latest exists, and is replaced.").wait_for()
    dialog.get_by_label("Parameters").fill("heat")
    dialog.get_by_role("button", name="Make").click()
    dialog.get_by_text("is not a name and a value").wait_for()
    assert faults(page, axe) == []
    page.route("**/api/create", lambda route: None)  # never answered
    dialog.get_by_label("Parameters").fill("")
    dialog.get_by_role("button", name="Make").click()
    dialog.get_by_text("beginning").wait_for()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Copy base:latest").click()
    page.get_by_label("Second name").fill("../twin")
    dialog.get_by_role("button", name="Copy").click()
    page.get_by_text("is invalid").wait_for()
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    part = page.get_by_role("region", name="LoRA adapters")
    for name, file, sign in (("sql", "one.gguf", "Scale of sql"), ("bad", "../none.gguf", "")):
        part.get_by_label("Adapter's name").fill(name)
        part.get_by_label("File in the server's folder").fill(file)
        part.get_by_label("For the model").select_option("base:latest")
        part.get_by_role("button", name="Load", exact=True).click()
        (part.get_by_label(sign) if sign else part.get_by_text("there is no adapter")).wait_for()
    assert faults(page, axe) == []


@pytest.fixture(scope="module")
def locked(fake: Running, script: Script, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server that asks for a key."""
    settings = Settings(address=SOMEWHERE, api_keys=("secret",), admin_keys=("admin",))
    with running(settings, tmp_path_factory.mktemp("locked"), script.open) as server:
        yield server


def test_the_question_for_a_key(locked: Running, seen: Seen, axe: str) -> None:
    page = seen(locked)
    page.get_by_label("API key").wait_for()
    assert faults(page, axe) == []
    for key in "wrong", "secret":
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        if key == "wrong":
            page.get_by_text("The server does not know this key.").wait_for()
            assert faults(page, axe) == []
    page.get_by_role("dialog").wait_for(state="detached")
    page.get_by_text("Somebody with an admin key can pull a model.").wait_for()
    assert faults(page, axe) == []
    page.goto(locked.url + "/#/models")
    page.get_by_text("No adapter is loaded.").wait_for()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Use another key").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").wait_for()
    assert faults(page, axe) == []


def test_live(guided: Running, seen: Seen, axe: str) -> None:
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    page = seen(guided, "/#/live")
    page.get_by_label("The cache of").wait_for()
    page.locator(".scroller").evaluate("scroller => scroller.scrollTo(0, 9999)")
    page.get_by_role("list", name="Legend").wait_for()
    assert faults(page, axe) == []
    page.get_by_role("button", name="Show the cells of sequence 0").click()
    assert faults(page, axe) == []
    page.route("**/api/live/cache*", lambda route: route.fulfill(status=500, body='{"error": "it melted"}'))
    page.get_by_text("it melted").wait_for()
    assert faults(page, axe) == []


def test_live_without_a_model(
    tmp_path_factory: pytest.TempPathFactory, script: Script, seen: Seen, axe: str
) -> None:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("empty"), script.open) as server:
        page = seen(server, "/#/live")
        page.get_by_text("No model is in memory").wait_for()
        assert faults(page, axe) == []
