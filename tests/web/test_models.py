"""The page of models: listed, pulled, interrupted and resumed, and deleted."""

from __future__ import annotations

import json
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
from tests.web.conftest import Open

pytestmark = pytest.mark.slow

DIGEST = "sha256:" + "a" * 64


def lines(*steps: dict[str, Any]) -> str:
    return "".join(json.dumps(step) + "\n" for step in steps)


def test_what_is_here(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/models")
    card = page.locator(".models .card").filter(has_text="thinker")
    card.get_by_text("tools", exact=True).wait_for()
    assert "F32" in card.inner_text()
    card.get_by_text("Details").click()
    card.get_by_text("llama.context_length").wait_for()


def test_a_model_is_deleted_only_after_a_question(
    tmp_path: Path, tiny_llama: Path, script: Script, open_page: Open
) -> None:
    for _ in create(Store(tmp_path), ModelName.parse("small"), Recipe(sources=[tiny_llama])):
        pass
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as server:
        page = open_page(server, "/#/models")
        page.get_by_role("button", name="Delete small:latest").click()
        page.get_by_role("button", name="Cancel").click()
        assert server.get("/api/tags").json["models"][0]["name"] == "small:latest"
        page.get_by_role("button", name="Delete small:latest").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete small:latest").wait_for(state="detached")
        assert "small:latest" not in {each["name"] for each in server.get("/api/tags").json["models"]}


def test_a_pull_that_is_cut_goes_on(fake: Running, open_page: Open) -> None:
    """The first stream ends early; the page asks again, also after a reload, until the model is complete."""
    half = {"status": "pulling aaa", "digest": DIGEST, "total": 4_000_000, "completed": 2_000_000}
    replies = [lines(half), lines(half), lines(half | {"completed": 4_000_000}, {"status": "success"})]
    asked: list[Any] = []

    def pull(route: Any) -> None:
        asked.append(route.request.post_data_json)
        if len(asked) == 1:
            route.abort("connectionreset")
        else:
            route.fulfill(body=replies[min(len(asked) - 2, 2)], content_type="application/x-ndjson")

    page = open_page(fake, "/#/models")
    page.route("**/api/pull", pull)
    page.get_by_label("Name of a model to pull").fill("big:7b")
    page.keyboard.press("Enter")
    page.get_by_text("2.0 MB of 4.0 MB, the connection was lost; trying again").wait_for()
    assert page.get_by_label("Progress of big:7b").get_attribute("value") == "2000000"
    page.reload()
    pulled = page.get_by_role("group", name="Pull of big:7b")
    pulled.wait_for()
    pulled.wait_for(state="detached")
    assert asked == [{"model": "big:7b"}] * len(asked)
    assert len(asked) == 4


def test_a_pull_that_fails_says_why(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/models")
    page.get_by_label("Name of a model to pull").fill("../bad")
    page.get_by_role("button", name="Pull").click()
    page.get_by_text("is invalid").wait_for()
    page.get_by_role("button", name="Stop pulling ../bad").click()
    page.get_by_role("group", name="Pull of ../bad").wait_for(state="detached")
