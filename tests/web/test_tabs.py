"""Several tabs of one browser: none loses what another one writes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running, wait_until
from tests.web.conftest import Open, ask, ended, second_tab
from tests.web.test_chat import held

__all__ = ["held"]

pytestmark = pytest.mark.slow

OLD = {
    "id": "c1",
    "title": "Old roads",
    "created": 1,
    "updated": 2,
    "model": "thinker:latest",
    "settings": {"temperature": 0.5},
    "messages": {
        "a": {"id": "a", "parent": None, "role": "user", "content": "Where do they go?", "created": 1},
        "b": {"id": "b", "parent": "a", "role": "assistant", "content": "To Cusco.", "created": 2},
    },
    "leaf": "b",
}
# What the page wrote before each message had its own record. It keeps its connection open, as a tab does.
WRITE_OLD = """(conversation) => new Promise((resolve) => {
    const opening = indexedDB.open("chaski", 1);
    opening.onupgradeneeded = () => {
        const store = opening.result.createObjectStore("conversations", { keyPath: "id" });
        store.put(conversation);
    };
    opening.onsuccess = () => { window.kept = opening.result; resolve(); };
})"""


def questions(page: Any) -> list[str]:
    texts: list[str] = page.locator("article.asked .plain").all_inner_texts()
    return texts


def two_tabs(server: Running, open_page: Open) -> tuple[Any, Any]:
    """Open one conversation with the question "one" in two tabs."""
    first = open_page(server)
    ask(first, "one")
    ended(first)
    second = second_tab(first)
    ended(second)
    return first, second


def test_both_tabs_show_what_either_asks(fake: Running, script: Script, open_page: Open) -> None:
    first, second = two_tabs(fake, open_page)
    script.pieces = ("from the first",)
    ask(first, "two")
    second.get_by_text("from the first").wait_for()
    script.pieces = ("from the second",)
    ask(second, "three")
    first.get_by_text("from the second").wait_for()
    for page in first, second:
        page.reload()
        ended(page, 3)
        assert questions(page) == ["one", "two", "three"]


def test_a_new_conversation_appears_in_other_tabs(fake: Running, open_page: Open) -> None:
    first = open_page(fake)
    second = second_tab(first)
    second.get_by_text("No conversations yet").wait_for()
    ask(first, "about llamas")
    second.get_by_role("link", name="about llamas").click()
    ended(second)
    second.get_by_role("button", name="Rename about llamas").click()
    second.get_by_label("Name of the conversation").fill("Llamas")
    second.keyboard.press("Enter")
    first.get_by_role("link", name="Llamas").wait_for()
    first.get_by_role("heading", name="Llamas").wait_for()


def test_questions_at_the_same_time_become_branches(fake: Running, open_page: Open) -> None:
    first, second = two_tabs(fake, open_page)
    for page, text in (first, "left"), (second, "right"):
        page.get_by_role("textbox", name="Message").fill(text)
    start = first.evaluate("Date.now()") + 400
    for page in first, second:
        page.evaluate(
            """(start) => {
                const send = () => document.querySelector("button[aria-label=Send]").click();
                setTimeout(() => { while (Date.now() < start); send(); }, start - 50 - Date.now());
            }""",
            start,
        )
    for page, text in (first, "left"), (second, "right"):
        page.get_by_text(text, exact=True).wait_for()
    for page in first, second:
        page.reload()
        ended(page, 2)
        if page.locator(".asked .branches").count():
            assert page.locator(".asked .branches span").inner_text().endswith(" / 2")
            both = {questions(page)[1]}
            page.locator(".asked").get_by_role("button", name="version", disabled=False).first.click()
            both.add(questions(page)[1])
            assert both == {"left", "right"}
        else:  # one tab was so slow that it asked after the other's answer
            assert {"left", "right"} <= set(questions(page))


def test_changes_of_different_things_join(fake: Running, open_page: Open) -> None:
    first, second = two_tabs(fake, open_page)
    for page in first, second:
        page.get_by_role("button", name="Settings").click()
    first.get_by_label("Seed").fill("42")
    second.get_by_label("Top k").fill("7")
    second.get_by_role("button", name="Close the settings").click()
    second.get_by_role("button", name="Rename one").click()
    second.get_by_label("Name of the conversation").fill("Roads")
    second.keyboard.press("Enter")
    first.get_by_role("link", name="Roads").wait_for()
    second.reload()
    second.get_by_role("heading", name="Roads").wait_for()
    second.get_by_role("button", name="Settings").click()
    assert second.get_by_label("Seed").input_value() == "42"
    assert second.get_by_label("Top k").input_value() == "7"


def test_a_deleted_conversation_stays_deleted(
    fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    script.pieces = ("one ", "two ", "three")
    first = open_page(fake)
    ask(first, "count")
    first.locator("article.answered[aria-busy=true]").wait_for()
    second = second_tab(first)
    second.get_by_role("button", name="Delete count").click()
    second.get_by_role("dialog").get_by_role("button", name="Delete").click()
    first.get_by_text("“count” was deleted in another tab.").wait_for()
    first.get_by_role("heading", name="New chat").wait_for()
    wait_until(lambda: all(answer.is_over for answer in fake.services.answers._found.values()))
    held.set()
    for page in first, second:
        page.reload()
        page.get_by_text("No conversations yet").wait_for()


def test_an_answer_is_stopped_from_another_tab(
    fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    first = open_page(fake)
    ask(first, "count")
    first.locator("article.answered[aria-busy=true]").wait_for()
    second = second_tab(first)
    second.get_by_role("button", name="Stop").click()
    first.get_by_text("Stopped.").wait_for()
    wait_until(lambda: all(answer.is_over for answer in fake.services.answers._found.values()))
    held.set()
    second.reload()
    second.get_by_text("Stopped.").wait_for()


def test_another_tab_receives_the_answer_of_a_closed_one(
    fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    script.pieces = ("one ", "two ", "three")
    first = open_page(fake)
    ask(first, "count")
    first.locator("article.answered[aria-busy=true]").wait_for()
    second = second_tab(first)
    second.locator("article.answered[aria-busy=true]").wait_for()
    first.close(run_before_unload=False)
    held.set()
    assert "one two three" in ended(second).inner_text()
    second.reload()
    assert "one two three" in ended(second).inner_text()


def test_a_deleted_message_stays_deleted(fake: Running, open_page: Open) -> None:
    first, second = two_tabs(fake, open_page)
    ask(first, "two")
    ended(second, 2)
    second.get_by_role("button", name="Delete the question").last.click()
    second.get_by_text("This also deletes the message after it.").wait_for()
    second.get_by_role("dialog").get_by_role("button", name="Delete").click()
    first.get_by_text("two", exact=True).wait_for(state="detached")
    ask(first, "three")
    ended(second, 2)
    second.reload()
    ended(second, 2)
    assert questions(second) == ["one", "three"]


def test_an_import_appears_in_other_tabs_and_changes_nothing_there(
    fake: Running, open_page: Open, tmp_path: Path
) -> None:
    first, second = two_tabs(fake, open_page)
    with first.expect_download() as waiting:
        first.get_by_role("button", name="Export", exact=True).click()
    waiting.value.save_as(tmp_path / "all.json")
    exported = json.loads((tmp_path / "all.json").read_text())
    exported["conversations"].append(OLD)
    (tmp_path / "more.json").write_text(json.dumps(exported))
    ask(second, "two")
    ended(second, 2)
    first.get_by_label("File of conversations").set_input_files(tmp_path / "more.json")
    second.get_by_role("link", name="Old roads").wait_for()
    first.reload()
    ended(first, 2)
    assert questions(first) == ["one", "two"]


def test_conversations_of_the_older_page_are_kept(fake: Running, open_page: Open) -> None:
    old = open_page(fake, "/api/version")
    old.evaluate(WRITE_OLD, OLD)
    page = old.context.new_page()
    page.goto(fake.url)
    page.get_by_text("Another tab shows an older version of this page.").wait_for()
    ask(page, "meanwhile")
    ended(page)
    old.close()
    page.get_by_role("link", name="Old roads").click()
    page.get_by_text("To Cusco.").wait_for()
    assert page.get_by_text("older version").count() == 0
    page.reload()
    page.get_by_text("To Cusco.").wait_for()
    assert questions(page) == ["Where do they go?"]
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Temperature").input_value() == "0.5"
    page.get_by_role("link", name="meanwhile").wait_for()


def test_a_newer_page_is_not_blocked(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    newer = page.context.new_page()
    newer.goto(fake.url + "/api/version")
    version = newer.evaluate(
        """() => new Promise((resolve, reject) => {
            const opening = indexedDB.open("chaski", 99);
            opening.onblocked = () => reject("blocked");
            opening.onsuccess = () => resolve(opening.result.version);
        })"""
    )
    assert version == 99
    page.get_by_text("Another tab shows a newer version of this page.").wait_for()
    page.get_by_role("button", name="Load again").wait_for()


def test_a_browser_without_a_database_still_chats(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake, "/api/version")
    page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('it is switched off'); }")
    page.goto(fake.url)
    page.get_by_text("Conversations cannot be kept here: it is switched off").wait_for()
    for number in range(2):
        script.pieces = (f"answer {number}",)
        ask(page, f"question {number}")
        page.get_by_text(f"answer {number}").wait_for()
        ended(page, number + 1)
    page.get_by_role("button", name="Delete question 0").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("No conversations yet").wait_for()


def test_pulls_of_both_tabs_continue_after_a_reload(fake: Running, open_page: Open) -> None:
    first = open_page(fake, "/#/models")
    first.context.route("**/api/pull", lambda route: None)  # the registry does not answer
    second = second_tab(first)
    for page, name in (first, "big:7b"), (second, "small:1b"):
        page.get_by_label("Name of a model to pull").fill(name)
        page.keyboard.press("Enter")
        page.get_by_role("group", name=f"Pull of {name}").wait_for()
    first.reload()
    for name in "big:7b", "small:1b":
        first.get_by_role("group", name=f"Pull of {name}").wait_for()
