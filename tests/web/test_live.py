"""The page that shows what a server does at this moment, and every cell of a model's cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running import Running
from tests.web.conftest import PHONE, Open, ask, ended, picture
from tests.web.test_accessibility import axe, faults

__all__ = ["axe"]

pytestmark = pytest.mark.slow


def chatted(page: Any) -> None:
    """Two conversations, so that two sequences begin alike."""
    for question in ("How do I pull a model?", "How do I use fewer cores?"):
        page.get_by_role("link", name="New chat").click()
        page.get_by_role("heading", name="New chat").wait_for()
        page.get_by_label("Model", exact=True).select_option("helper:latest")
        ask(page, question)
        ended(page)


def test_every_cell_is_shown(guided: Running, open_page: Open, axe: str) -> None:
    page = open_page(guided)
    chatted(page)
    page.get_by_role("link", name="Live").click()
    part = page.get_by_role("region", name="Cells: all tokens")
    canvas = part.locator("canvas")
    canvas.wait_for()
    told = guided.get("/api/live/cache?model=helper").json
    (kind,) = told["kinds"]
    held = {run[1] + step for run in kind["runs"] for step in range(run[3])}
    assert f"{len(held):,} of {kind['cells']:,} cells taken" in part.inner_text()
    sequence, cell, position, _ = kind["runs"][0]
    assert cell == 0
    canvas.hover(position={"x": 2, "y": 2})
    part.get_by_text(f"Cell 0: sequence {sequence}, position {position}").wait_for()
    # A click shows the way of the sequence: all other cells fade.
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.get_by_role("button", name=f"Show the cells of sequence {1 - sequence}").click()
    page.wait_for_function("before => document.querySelector('canvas').toDataURL() !== before", arg=before)
    page.get_by_role("button", name=f"Show the cells of sequence {1 - sequence}").press("Enter")
    page.get_by_role("figure").filter(has_text="Memory of models").locator("polyline").wait_for(
        state="attached"
    )
    assert "MB" in page.get_by_role("figure").filter(has_text="Memory of models").inner_text()
    rows = page.locator(".sequences tbody tr").all_inner_texts()
    assert [int(row.split("\t")[1]) for row in rows] == [slot["tokens"] for slot in told["slots"]]
    for seed in range(3):
        body = {"model": "helper", "prompt": f"Tell me of {seed}", "stream": False}
        guided.post("/api/generate", body | {"options": {"num_predict": 400, "temperature": 2, "seed": seed}})
        page.wait_for_timeout(1100)
    page.locator(".scroller").evaluate("scroller => scroller.scrollTo(0, 0)")
    picture(page, "live")
    assert faults(page, axe) == []


def test_it_asks_once_a_second_and_only_while_it_is_seen(guided: Running, open_page: Open) -> None:
    page = open_page(guided, "/#/live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/metrics" in request.url else None)
    page.wait_for_timeout(3500)
    assert 2 <= len(asked) <= 4
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
    page.wait_for_timeout(1500)
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate("delete document.hidden")
    page.wait_for_function("performance.now() > 0")
    page.wait_for_timeout(1500)
    assert asked
    page.get_by_role("link", name="New chat").click()
    page.wait_for_timeout(1500)
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []


def test_on_a_phone_and_without_a_model(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/live", viewport=PHONE, has_touch=True, is_mobile=True)
    page.get_by_text("No model is in memory").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
