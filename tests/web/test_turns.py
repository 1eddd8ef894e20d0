"""The buttons and keys of a message: copy, edit, delete, answer again and stop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running, wait_until
from tests.web.conftest import Open, ask, ended
from tests.web.test_chat import held, prompt

__all__ = ["held"]

pytestmark = pytest.mark.slow


def delete(page: Any, what: str, said: str, place: int = -1) -> None:
    page.get_by_role("button", name=f"Delete the {what}").nth(place).click()
    assert said in page.get_by_role("dialog").inner_text()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()


def test_every_message_is_copied(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "  two\nlines")
    ended(page)
    for name, text in ("Copy the question", "  two\nlines"), ("Copy the answer", "hello"):
        page.get_by_role("button", name=name).click()
        page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg=text)


def test_messages_are_deleted_with_those_after_them(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    for number in "one", "two", "three":
        script.pieces = (f"answer {number}",)
        ask(page, f"question {number}")
        page.get_by_text(f"answer {number}").wait_for()
        ended(page)
    delete(page, "answer", "You cannot undo this.")
    page.get_by_text("answer three").wait_for(state="detached")
    assert page.locator("article").count() == 5
    delete(page, "question", "This also deletes the 2 messages after it, in all branches.", 1)
    page.get_by_text("question two").wait_for(state="detached")
    assert page.locator("article").count() == 2
    ask(page, "again")
    ended(page, 2)
    assert "question two" not in prompt(script)
    page.reload()
    ended(page, 2)
    assert page.locator("article").count() == 4


def test_a_deleted_branch_leaves_the_other(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    script.pieces = ("first",)
    ask(page, "question")
    page.get_by_text("first", exact=True).wait_for()
    script.pieces = ("second",)
    page.get_by_role("button", name="Answer again", exact=True).click()
    page.get_by_text("second", exact=True).wait_for()
    ended(page)
    delete(page, "answer", "You cannot undo this.")
    page.get_by_text("first", exact=True).wait_for()
    assert page.locator(".branches").count() == 0
    delete(page, "question", "This also deletes the message after it.")
    page.get_by_role("heading", name="Ask anything").wait_for()
    page.get_by_role("link", name="question").wait_for()


def test_a_question_is_deleted_while_it_is_answered(
    fake: Running, held: threading.Event, open_page: Open
) -> None:
    page = open_page(fake)
    ask(page, "count")
    page.locator("article.answered[aria-busy=true]").wait_for()
    delete(page, "question", "This also deletes the message after it.")
    page.locator("article").first.wait_for(state="detached")
    wait_until(lambda: all(answer.is_over for answer in fake.services.answers._found.values()))


def test_keys_of_an_edited_question(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    ask(page, "question")
    ended(page)
    edit = page.get_by_role("button", name="Edit the question")
    edit.click()
    page.get_by_label("Edited question").fill("changed")
    page.keyboard.press("Escape")
    page.get_by_text("question", exact=True).and_(page.locator(".plain")).wait_for()
    assert edit.evaluate("button => button === document.activeElement")
    page.keyboard.press("Enter")
    page.get_by_label("Edited question").fill("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    page.locator(".asked .branches", has_text="2 / 2").wait_for()
    ended(page)
    assert "[user]first line\nsecond line" in prompt(script)
    edit.click()
    page.get_by_label("Edited question").fill("  ")
    page.keyboard.press("Enter")
    assert page.get_by_label("Edited question").is_visible()


def test_escape_stops_an_answer_and_closes_first(
    fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    page = open_page(fake)
    ask(page, "count")
    page.locator("article.answered[aria-busy=true]").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Seed").press("Escape")
    page.get_by_label("Seed").wait_for(state="detached")
    page.get_by_role("button", name="Delete count").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.get_by_label("Search conversations").press("Escape")
    assert page.locator("article.answered[aria-busy=true]").count() == 1
    page.get_by_role("textbox", name="Message").press("Escape")
    page.get_by_text("Stopped.").wait_for()


def test_another_model_answers_again(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    ask(page, "question")
    ended(page)
    again = page.get_by_label("Answer again with another model")
    assert again.locator("option").first.inner_text() == "Answer again with…"
    again.select_option("guide:latest")
    page.locator("article.answered", has_text="guide:latest").wait_for()
    page.locator(".answered .branches", has_text="2 / 2").wait_for()
