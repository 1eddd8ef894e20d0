"""The page that shows what a server does at this moment, and every cell of a model's cache."""

from __future__ import annotations

import json
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest

from tests.server.running import Running
from tests.web.conftest import DESKTOP, PHONE, Open, ask, ended, picture
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
    held = {run[1] + index * run[4] for run in kind["runs"] for index in range(run[3])}
    assert f"{len(held):,} of {kind['cells']:,} cells taken" in part.inner_text()
    sequence, cell, position, _, _ = kind["runs"][0]
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


def test_it_reads_one_stream_and_only_while_it_is_seen(guided: Running, open_page: Open) -> None:
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    page = open_page(guided)
    page.get_by_role("heading", name="New chat").wait_for()
    page.wait_for_load_state("networkidle")  # what the first page asks may come late
    asked: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(guided.url)))
    page.on("requestfailed", lambda request: ended.append(request.url.removeprefix(guided.url)))
    page.get_by_role("link", name="Live").click()
    page.locator("canvas").wait_for()
    page.wait_for_timeout(3000)
    live = [path for path in asked if path.startswith(("/api/", "/metrics"))]
    assert live.count("/api/live?stream=1") == 1
    cache = [path for path in live if path.startswith("/api/live/cache?model=helper")]
    assert 2 <= len(cache) <= 6
    assert len(live) == 1 + len(cache)
    # The cells are asked for only while they are in sight; the stream goes on.
    page.set_viewport_size({"width": 1280, "height": 130})
    page.wait_for_timeout(500)
    asked.clear()
    page.wait_for_timeout(2000)
    assert asked == []
    page.set_viewport_size(DESKTOP)
    with page.expect_request("**/api/live/cache?*"):
        pass
    # A page that is hidden ends the stream, and begins it again when it is shown.
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(1000)
    assert "/api/live?stream=1" in ended
    asked.clear()
    page.wait_for_timeout(2000)
    assert asked == []
    with page.expect_request("**/api/live?stream=1"):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    ended.clear()
    page.get_by_role("link", name="New chat").click()
    page.get_by_role("heading", name="New chat").wait_for()
    page.wait_for_timeout(1000)
    assert ended == ["/api/live?stream=1"]
    asked.clear()
    page.wait_for_timeout(2000)
    assert asked == []


def test_a_stream_that_is_cut_is_opened_again(guided: Running, open_page: Open) -> None:
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    page = open_page(guided)
    page.get_by_role("heading", name="New chat").wait_for()
    line = json.dumps(guided.get("/api/live").json | {"models": []})
    times: list[float] = []

    def cut(route: Any) -> None:
        times.append(monotonic())
        if len(times) == 1:
            route.abort()
        elif len(times) == 2:
            route.fulfill(body=line + "\n", content_type="application/x-ndjson")
        else:
            route.continue_()

    page.route("**/api/live?stream=1", cut)
    page.get_by_role("link", name="Live").click()
    page.get_by_role("alert").get_by_text("The server cannot be reached.").wait_for()
    page.get_by_text("No model is in memory").wait_for()
    assert page.get_by_role("alert").count() == 0
    page.locator("canvas").wait_for()
    assert len(times) == 3
    assert all(after - before >= 0.9 for before, after in pairwise(times))


def test_the_time_to_the_first_token_comes_from_the_stream(guided: Running, open_page: Open) -> None:
    page = open_page(guided, "/#/live")
    chart = page.get_by_role("figure").filter(has_text="Time to the first token")
    page.get_by_role("figure").filter(has_text="Memory of models").locator("circle, polyline").wait_for(
        state="attached"
    )
    assert "–" in chart.inner_text()
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    chart.locator("strong").get_by_text(" s").wait_for()


def test_on_a_phone_and_without_a_model(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/live", viewport=PHONE, has_touch=True, is_mobile=True)
    page.get_by_text("No model is in memory").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
