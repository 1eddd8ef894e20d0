"""What was typed and not sent stays, for each conversation and tab."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import Open, ask, ended, second_tab
from tests.web.test_chat import PIXEL

pytestmark = pytest.mark.slow


def field(page: Any) -> Any:
    return page.get_by_role("textbox", name="Message")


def shows(page: Any, text: str) -> None:
    """Wait until the message field contains a text."""
    page.wait_for_function("(text) => document.querySelector('.composer textarea')?.value === text", arg=text)


def test_a_draft_stays_after_navigation_and_reload(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    field(page).fill("draft of one")
    page.get_by_role("link", name="New chat").click()
    page.get_by_role("heading", name="New chat").wait_for()
    shows(page, "")
    field(page).fill("new draft")
    page.get_by_role("link", name="Models").click()
    page.get_by_role("heading", name="Models", exact=True).wait_for()
    page.get_by_role("link", name="one", exact=True).click()
    shows(page, "draft of one")
    field(page).fill("changed")
    page.reload()
    shows(page, "changed")
    page.get_by_role("link", name="New chat").click()
    shows(page, "new draft")
    page.keyboard.press("Enter")
    ended(page)
    page.reload()
    ended(page)
    shows(page, "")
    page.get_by_role("link", name="New chat").click()
    page.get_by_role("heading", name="New chat").wait_for()
    shows(page, "")


def test_attachments_stay_with_their_draft(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    page.get_by_label("Files", exact=True).set_input_files(
        [
            {"name": "a.png", "mimeType": "image/png", "buffer": PIXEL},
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"llamas climb"},
        ]
    )
    page.get_by_alt_text("Attached image 1").wait_for()
    page.get_by_text("notes.txt").wait_for()
    page.reload()
    page.get_by_alt_text("Attached image 1").wait_for()
    page.get_by_role("button", name="Remove image 1").click()
    page.reload()
    page.get_by_text("notes.txt").wait_for()
    assert page.get_by_alt_text("Attached image 1").count() == 0
    ask(page, "What do they do?")
    ended(page)
    page.get_by_role("article", name="You").get_by_text("notes.txt").wait_for()
    assert page.locator(".attachment").count() == 0


def test_tabs_do_not_share_drafts_while_they_are_open(fake: Running, open_page: Open) -> None:
    first = open_page(fake)
    field(first).fill("in the first")
    second = second_tab(first)
    second.get_by_text("No conversations yet").wait_for()
    shows(second, "")
    field(second).fill("in the second")
    for page, text in (first, "in the first"), (second, "in the second"):
        page.reload()
        shows(page, text)
    field(second).fill("")
    first.close()
    second.reload()
    shows(second, "in the first")


def test_a_duplicate_of_a_tab_has_its_own_drafts(fake: Running, open_page: Open) -> None:
    first = open_page(fake)
    field(first).fill("in the first")
    with first.expect_popup() as waiting:
        first.evaluate("void window.open(location.href)")  # copies the storage of the session, too
    second = waiting.value
    named = "sessionStorage['chaski.tab']"
    second.wait_for_function(f"(name) => {named} !== name", arg=first.evaluate(named))
    field(second).fill("in the second")
    for page, text in (first, "in the first"), (second, "in the second"):
        page.reload()
        shows(page, text)


def test_an_edited_question_and_a_typed_result_stay(fake: Running, script: Script, open_page: Open) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page = open_page(fake)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Tools that the model may call").fill(json.dumps([tool]))
    page.get_by_role("button", name="Close the settings").click()
    script.pieces = ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>',)
    ask(page, "How is the weather?")
    page.get_by_label("Result of weather").fill("sun")
    page.get_by_role("button", name="Edit the question").click()
    page.get_by_label("Edited question").fill("How was the weather?")
    page.reload()
    edited = page.get_by_label("Edited question")
    edited.wait_for()
    assert edited.input_value() == "How was the weather?"
    page.wait_for_function(
        "[...document.querySelectorAll('form.card textarea')].some((each) => each.value === 'sun')"
    )
    edited.press("Escape")
    page.reload()
    page.get_by_text("How is the weather?", exact=True).first.wait_for()
    ended(page)
    assert edited.count() == 0


def test_a_draft_goes_with_its_conversation(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    field(page).fill("draft")
    page.get_by_role("button", name="Delete one").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("No conversations yet").wait_for()
    kept = page.evaluate(
        """() => new Promise((resolve) => {
            const opening = indexedDB.open("chaski");
            opening.onsuccess = () => {
                const drafts = opening.result.transaction("drafts").objectStore("drafts").getAll();
                drafts.onsuccess = () => { opening.result.close(); resolve(drafts.result); };
            };
        })"""
    )
    assert kept == []
