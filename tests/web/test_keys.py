"""The page offers only the actions that its key allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.web.accessible import axe, faults
from tests.web.conftest import PHONE, Open, ask, choose_model, ended, picture

__all__ = ["axe"]

pytestmark = pytest.mark.slow

USER, ADMIN = "user-key", "admin-key"
ADMIN_BUTTONS = ("Make a model from small:latest", "Copy small:latest", "Delete small:latest")


@pytest.fixture
def guarded(tmp_path: Path, tiny_llama: Path, script: Script) -> Iterator[Running]:
    for _ in create(Store(tmp_path), ModelName.parse("small"), Recipe(sources=[tiny_llama])):
        pass
    settings = Settings(address=SOMEWHERE, api_keys=(USER,), admin_keys=(ADMIN,))
    with running(settings, tmp_path, script.open) as server:
        yield server


def sign_in(page: Any, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_a_user_is_offered_no_change_of_models(guarded: Running, open_page: Open, axe: str) -> None:
    page = open_page(guarded, "/#/models")
    refused: list[int] = []
    page.on("response", lambda reply: refused.append(reply.status) if reply.status == 403 else None)
    sign_in(page, USER)
    page.get_by_role("note").get_by_text("Your key may use models but not change them").wait_for()
    page.get_by_text("Details").first.wait_for()
    for name in ADMIN_BUTTONS:
        assert page.get_by_role("button", name=name).count() == 0
    assert page.get_by_label("Name of a model to pull").count() == 0
    assert page.get_by_role("button", name="Load", exact=True).count() == 0
    assert page.get_by_text("unauthorized").count() == 0
    assert faults(page, axe) == []
    picture(page, "keys")
    # Allowed actions still work.
    page.get_by_text("Fits: ").first.wait_for()
    page.get_by_role("link", name="New chat").click()
    choose_model(page, "small:latest")
    ask(page, "x")
    assert "hello" in ended(page).inner_text()
    assert refused == []


def test_an_admin_is_offered_all(guarded: Running, open_page: Open) -> None:
    page = open_page(guarded, "/#/models")
    sign_in(page, ADMIN)
    page.get_by_label("Name of a model to pull").wait_for()
    assert page.get_by_role("note").count() == 0
    for name in ADMIN_BUTTONS:
        page.get_by_role("button", name=name).wait_for()
    page.get_by_role("button", name="Load", exact=True).wait_for()
    page.get_by_role("button", name="Delete small:latest").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete small:latest").wait_for(state="detached")


def test_another_key_may_do_more(guarded: Running, open_page: Open) -> None:
    page = open_page(guarded, "/#/models", viewport=PHONE, has_touch=True, is_mobile=True)
    sign_in(page, USER)
    page.get_by_role("button", name="Use another key").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("sessionStorage['chaski.key']") == USER
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Use another key").click()
    sign_in(page, ADMIN)
    page.get_by_role("button", name="Delete small:latest").wait_for()
    assert page.get_by_role("note").count() == 0


def test_a_key_that_is_no_key_is_asked_for_again(guarded: Running, open_page: Open) -> None:
    page = open_page(guarded, "/#/models")
    sign_in(page, "wrong")
    page.get_by_text("The server does not know this key.").wait_for()
    sign_in(page, USER)
    page.get_by_role("note").wait_for()


def test_a_late_refusal_of_an_earlier_key_is_ignored(guarded: Running, open_page: Open) -> None:
    page = open_page(guarded, "/#/models")
    late: list[Any] = []
    place = page.url
    page.goto("about:blank")  # so that no request of the page is on its way
    page.route("**/api/ps", lambda route: late.append(route), times=1)
    page.goto(place)
    sign_in(page, USER)
    page.get_by_role("note").wait_for()
    (route,) = late
    with page.expect_response(lambda reply: reply.status == 401):
        route.continue_()
    page.get_by_text("Details").first.wait_for()
    page.get_by_role("link", name="New chat").click()
    assert page.get_by_role("dialog").count() == 0


def test_a_user_is_told_who_can_get_a_model(tmp_path: Path, script: Script, open_page: Open) -> None:
    settings = Settings(address=SOMEWHERE, api_keys=(USER,), admin_keys=(ADMIN,))
    with running(settings, tmp_path, script.open) as server:
        page = open_page(server)
        sign_in(page, USER)
        page.get_by_text("Somebody with an admin key can pull a model.").wait_for()
        assert page.get_by_role("region", name="Get a model").get_by_role("button").count() == 0
