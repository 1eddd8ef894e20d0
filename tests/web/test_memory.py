"""The page shows before loading whether a model fits, and offers sizes that fit."""

from __future__ import annotations

import pytest

from tests.server.huge_model import HUGE
from tests.server.running import Running
from tests.web.conftest import Open, ask, choose_model, ended, picture

pytestmark = pytest.mark.slow


def test_models_tell_what_they_take(huge: Running, open_page: Open) -> None:
    page = open_page(huge, "/#/models")
    card = page.locator(".models .card").filter(has_text="huge:latest")
    card.get_by_text("Fits: ").click()
    assert "4 at a time" in card.locator(".memory summary").inner_text()
    card.get_by_label("Context").fill(str(HUGE))
    card.get_by_text("Does not fit: it needs").wait_for()
    assert "more than available" in card.locator(".memory summary").inner_text()
    assert "available" in card.locator(".memory dl").inner_text()
    picture(page, "does-not-fit")
    card.get_by_role("button", name="Use a context of").click()
    card.get_by_text("Fits: ").wait_for()
    card.get_by_label("At a time").fill("64")
    card.get_by_text("Does not fit").wait_for()
    card.get_by_label("Context").fill(str(HUGE))
    card.get_by_text("can be addressed").wait_for()


def test_a_chat_with_a_model_that_does_not_fit(huge: Running, open_page: Open) -> None:
    page = open_page(huge)
    choose_model(page, "huge:latest")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Context").fill(str(HUGE))
    page.get_by_role("button", name="Close the settings").click()
    warning = page.get_by_role("alert").filter(has_text="Does not fit")
    warning.get_by_text("more than available").wait_for()
    warning.get_by_role("button", name="Use a context of").click()
    warning.wait_for(state="detached")
    ask(page, "hello")
    ended(page)
    page.get_by_role("button", name="Settings").click()
    assert 0 < int(page.get_by_label("Context").input_value()) < HUGE
