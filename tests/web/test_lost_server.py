"""A server that goes away, hangs or starts again: the page says so, keeps the question and asks again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.chat.requests import Generate
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until
from tests.web.conftest import Open, ask, choose_model, ended
from tests.web.gate import Gate, gate_to
from tests.web.test_chat import held

__all__ = ["held"]

pytestmark = pytest.mark.slow

LOST = "The server cannot be reached."
UNKNOWN = "The server does not have this answer any more."


@pytest.fixture
def gate(fake: Running) -> Iterator[Gate]:
    with gate_to(fake.port) as gate:
        yield gate


def is_running(server: Running) -> bool:
    return any(not answer.is_over for answer in server.services.answers._found.values())


def try_again(page: Any) -> None:
    page.get_by_role("button", name="Try again").click()


def begun(page: Any, gate: Gate, script: Script) -> None:
    """Ask a question whose answer stands at "one "."""
    script.pieces = ("one ", "two ", "three")
    ask(page, "count")
    page.get_by_text("one", exact=True).wait_for()


@pytest.fixture
def stepped(script: Script) -> Iterator[threading.Event]:
    """Let the first piece of an answer pass, and the others when the event is set."""

    class Step(threading.Event):
        passed = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self.passed:
                self.passed = True
                return True
            return super().wait(timeout)

    script.hold = Step()
    yield script.hold
    script.hold.set()
    script.hold = None


def test_a_question_to_a_server_that_is_gone(gate: Gate, script: Script, open_page: Open) -> None:
    page = open_page(gate)
    ask(page, "one")
    ended(page)
    gate.close()
    ask(page, "two")
    page.get_by_text(LOST).wait_for()
    assert page.locator("article.asked").last.inner_text().strip() == "two"
    gate.open()
    script.pieces = ("here again",)
    try_again(page)
    page.get_by_text("here again").wait_for()
    ended(page, 2)
    assert page.get_by_text(LOST).count() == 0
    page.reload()
    page.get_by_text("here again").wait_for()
    assert page.locator("article").count() == 4


def test_the_page_gives_up_and_still_offers_to_try_again(gate: Gate, open_page: Open) -> None:
    page = open_page(gate)
    page.get_by_role("textbox", name="Message").wait_for()
    page.clock.install()
    gate.close()
    page.get_by_role("textbox", name="Message").fill("one")
    page.keyboard.press("Enter")
    page.get_by_text(LOST).wait_for()
    page.clock.run_for(20_000)
    page.get_by_role("button", name="Send").wait_for()  # instead of Stop
    gate.open()
    try_again(page)
    page.clock.run_for(1000)
    page.get_by_text("hello", exact=True).wait_for()


def test_a_lost_answer_is_followed_again(
    gate: Gate, script: Script, stepped: threading.Event, open_page: Open
) -> None:
    page = open_page(gate)
    begun(page, gate, script)
    gate.close()
    page.get_by_text(LOST).wait_for()
    assert page.get_by_text("one", exact=True).is_visible()
    gate.open()
    stepped.set()
    assert "one two three" in ended(page).inner_text()
    assert page.get_by_text(LOST).count() == 0
    assert page.locator("article").count() == 2


def test_an_answer_of_a_server_that_was_restarted(
    gate: Gate, fake: Running, script: Script, stepped: threading.Event, open_page: Open
) -> None:
    page = open_page(gate)
    begun(page, gate, script)
    gate.close()
    page.get_by_text(LOST).wait_for()
    fake.services.answers._found.clear()
    gate.open()
    page.get_by_text(UNKNOWN).wait_for()
    stepped.set()
    assert page.get_by_text("one", exact=True).is_visible()
    assert page.get_by_role("button", name="Continue").is_visible()
    try_again(page)
    assert "one two three" in ended(page).inner_text()
    assert page.locator(".answered .branches span").inner_text() == "2 / 2"


def test_a_question_that_the_browser_sent_twice(fake: Running, script: Script, open_page: Open) -> None:
    # Chromium does so by itself if a connection that it had used before breaks.
    def send_twice(route: Any) -> None:
        fake.post("/api/chat", json.loads(route.request.post_data))
        route.continue_()

    script.pieces = ("only ", "once")
    page = open_page(fake)
    page.route("**/api/chat", send_twice)
    ask(page, "count")
    assert "only once" in ended(page).inner_text()
    assert page.locator("article").count() == 2
    assert sum(isinstance(call, Generate) for call in script.asked) == 1


def test_a_question_that_a_restarted_server_has_not_begun(
    gate: Gate, fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    page = open_page(gate)
    ask(page, "count")
    wait_until(lambda: is_running(fake))
    gate.close()
    page.get_by_text(LOST).wait_for()
    fake.services.answers._found.clear()
    held.set()
    gate.open()
    page.get_by_text(UNKNOWN).wait_for()
    try_again(page)
    page.get_by_text("hello", exact=True).wait_for()
    ended(page)
    assert page.locator(".answered .branches").count() == 0


def test_a_server_that_ends_regularly(
    fake: Running, gate: Gate, script: Script, stepped: threading.Event, open_page: Open
) -> None:
    """Its answers then end without a last line."""
    page = open_page(gate)
    page.route("**/api/answers/*", lambda route: route.abort())
    begun(page, gate, script)
    (answer,) = (each for each in fake.services.answers._found.values() if not each.is_over)
    answer.task.get_loop().call_soon_threadsafe(answer.task.cancel)
    page.get_by_text(LOST).wait_for()
    page.get_by_role("button", name="Try again").wait_for()


def test_stop_while_the_server_is_gone(
    gate: Gate, fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    page = open_page(gate)
    ask(page, "count")
    wait_until(lambda: is_running(fake))
    gate.close()
    page.get_by_text(LOST).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    gate.open()
    held.set()
    ask(page, "again")
    page.get_by_text("hello", exact=True).wait_for()


def test_a_server_that_hangs(gate: Gate, script: Script, open_page: Open) -> None:
    page = open_page(gate)
    page.get_by_role("textbox", name="Message").fill("count")
    page.locator("button[aria-label=Send]:enabled").wait_for()
    page.clock.install()
    gate.flows.clear()
    page.keyboard.press("Enter")
    page.locator("article.answered").wait_for()
    page.clock.run_for(6_000)
    page.route("**/api/version", lambda route: route.abort())  # instead of its real time
    page.clock.run_for(6_000)
    page.get_by_text("The server cannot be reached: it does not respond.").wait_for()
    page.unroute("**/api/version")
    gate.flows.set()
    page.get_by_text("hello", exact=True).wait_for()
    assert page.get_by_text("does not respond").count() == 0


def test_stop_before_a_hanging_server_answers(gate: Gate, fake: Running, open_page: Open) -> None:
    page = open_page(gate)
    page.get_by_role("textbox", name="Message").fill("count")
    page.locator("button[aria-label=Send]:enabled").wait_for()
    gate.flows.clear()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    gate.flows.set()
    wait_until(lambda: not is_running(fake))


def test_a_browser_without_a_network(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    page.get_by_role("textbox", name="Message").fill("count")
    page.locator("button[aria-label=Send]:enabled").wait_for()
    page.context.set_offline(True)
    page.keyboard.press("Enter")
    page.get_by_text(LOST).wait_for()
    page.context.set_offline(False)
    try_again(page)
    page.get_by_text("hello", exact=True).wait_for()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, '{"error": "out of memory"}', "out of memory"),
        (502, "<html><body>Bad Gateway</body></html>", "The server answered 502 Bad Gateway."),
        (503, "", "The server answered 503 Service Unavailable."),
    ],
)
def test_a_server_that_fails(fake: Running, open_page: Open, status: int, body: str, said: str) -> None:
    page = open_page(fake)
    page.route("**/api/chat", lambda route: route.fulfill(status=status, body=body))
    ask(page, "x")
    page.get_by_text(said, exact=True).wait_for()
    page.unroute("**/api/chat")
    try_again(page)
    page.get_by_text("hello", exact=True).wait_for()
    ended(page)
    assert page.locator(".answered .branches").count() == 0


def test_a_key_that_became_wrong(models: Path, script: Script, open_page: Open) -> None:
    with running(Settings(address=SOMEWHERE, api_keys=("secret",)), models, script.open) as guarded:
        page = open_page(guarded)
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        choose_model(page, "helper:latest")
        page.evaluate("sessionStorage['chaski.key'] = 'old'")
        ask(page, "count")
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        page.get_by_role("dialog").wait_for(state="detached")
        try_again(page)
        page.get_by_text("hello", exact=True).wait_for()
