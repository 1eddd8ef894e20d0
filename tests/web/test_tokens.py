"""The figures of an answer, its tokens with their probabilities, and branches from another token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running import Running
from tests.web.conftest import PHONE, Open, answers, ask, choose_model, ended, picture

pytestmark = pytest.mark.slow

QUESTION = "How do I pull a model?"


def asked(page: Any) -> Any:
    """Ask with three alternatives per token, and return the answer."""
    choose_model(page, "helper:latest")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Alternatives by token").fill("3")
    page.get_by_role("button", name="Close the settings").click()
    ask(page, QUESTION)
    return ended(page)


def test_another_token_begins_a_branch(guided: Running, open_page: Open) -> None:
    page = open_page(guided)
    first = asked(page).locator(".markdown").inner_text()
    page.get_by_role("button", name="Tokens").click()
    tokens = page.get_by_role("group", name="Tokens of the answer").get_by_role("button")
    texts = tokens.all_text_contents()
    assert len(texts) == 24
    tokens.nth(4).hover()
    page.get_by_text("Token 5 of 24").wait_for()
    tokens.nth(3).click()
    tokens.nth(9).hover()  # the clicked token stays
    page.get_by_text("Token 4 of 24").wait_for()
    choices = page.get_by_role("group", name="Alternatives").get_by_role("button")
    assert choices.count() == 3
    other = choices.nth(1).locator("code").inner_text().replace("␣", " ").replace("⏎", "\n")
    choices.nth(1).click()
    page.locator(".answered .branches").get_by_text("2 / 2").wait_for()
    second = ended(page)
    page.get_by_role("button", name="Tokens").click()
    page.get_by_text("Token 1 of 28").wait_for()
    assert tokens.all_text_contents()[:4] == [*texts[:3], other]
    assert second.locator(".token").count() == 4 + 24
    tokens.nth(4).click()
    picture(page, "tokens")
    page.get_by_role("button", name="Earlier version").click()
    page.get_by_role("button", name="Tokens").wait_for()
    assert first in answers(page).inner_text()
    page.reload()
    ended(page)
    page.get_by_role("button", name="Tokens").click()
    assert tokens.all_text_contents() == texts


def test_an_answer_that_was_cut_goes_on_with_its_own_text(guided: Running, open_page: Open) -> None:
    page = open_page(guided)
    first = asked(page).locator(".markdown").inner_text()
    page.get_by_role("button", name="Continue").click()
    answer = ended(page)
    page.get_by_role("button", name="Tokens").click()
    page.locator(".token").nth(24).wait_for()
    whole = "".join(answer.locator(".token").all_text_contents())
    assert whole.replace("`", "").startswith(first.replace("`", ""))


def test_tokens_by_keyboard(guided: Running, open_page: Open) -> None:
    page = open_page(guided)
    asked(page)
    page.get_by_role("button", name="Tokens").focus()
    page.keyboard.press("Enter")
    page.get_by_role("group", name="Tokens of the answer").get_by_role("button").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    page.get_by_text("Token 2 of 24").wait_for()
    page.keyboard.press("End")
    page.get_by_text("Token 24 of 24").wait_for()
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert "Continue with" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.locator(".answered .branches").get_by_text("2 / 2").wait_for()


def test_tokens_on_a_phone(guided: Running, open_page: Open) -> None:
    page = open_page(guided, viewport=PHONE, has_touch=True, is_mobile=True)
    asked(page)
    page.get_by_role("button", name="Tokens").tap()
    page.locator(".token").nth(6).tap()
    page.get_by_text("Token 7 of 24").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_figures_tell_all_that_the_server_does(guided: Running, open_page: Open) -> None:
    page = open_page(guided)
    choose_model(page, "helper:latest")
    for count in (1, 2):
        ask(page, QUESTION)
        ended(page, count)
    figures = answers(page).last.locator(".figures")
    figures.locator("summary").click()
    shown = dict(
        zip(figures.locator("dt").all_inner_texts(), figures.locator("dd").all_inner_texts(), strict=True)
    )
    assert shown["Tokens of the answer"] == "24"
    assert int(shown["of them cached"].split()[0]) > 0
    assert shown["Context"] == "1024"
    assert float(shown["Tokens a second"]) > 0
    assert float(shown["Tokens of the prompt a second"]) > 0
