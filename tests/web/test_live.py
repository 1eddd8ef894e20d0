"""The page with the server's current activity, and every cell of a model's cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running, wait_until
from tests.web.accessible import axe, faults
from tests.web.conftest import DESKTOP, PHONE, Open, ask, choose_model, ended, picture, until

__all__ = ["axe"]

pytestmark = pytest.mark.slow

ARCHITECTURES = Path(__file__).parents[1] / "data/architectures"
WINDOW, ALL, STATES = "the last 8 tokens", "all tokens", "states"


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with a random model whose layers see 8 tokens or all, and a random one with states."""
    folder = tmp_path_factory.mktemp("windowed")
    for name in ("gemma3", "lfm2"):
        recipe = Recipe(sources=[ARCHITECTURES / f"{name}.gguf"])
        for _ in create(Store(folder), ModelName.parse(name), recipe):
            pass
    with running(Settings(address=SOMEWHERE, parallel=4), folder) as server:
        yield server


# The server sends a line each second, so a page that still listened would do something in this time.
QUIET = 1300


def write(server: Running, model: str, prompt: str, **options: Any) -> Any:
    """Write an answer to a prompt with one token per character."""
    chosen = {"num_ctx": 256, "temperature": 0, "ignore_eos": True, **options}
    return server.post(
        "/api/generate", {"model": model, "prompt": prompt, "raw": True, "stream": False, "options": chosen}
    ).json


def kinds(page: Any, *names: str) -> list[Any]:
    return [page.get_by_role("region", name=f"Cells: {name}") for name in names]


def colored(canvas: Any, share: float) -> bool:
    """Return whether a lane has the color of a sequence at a share of its length; hatches are grey."""
    pixels: bool = canvas.evaluate(
        """(canvas, share) => {
            const scale = devicePixelRatio;
            const left = 26 * scale + share * (canvas.width - 26 * scale);
            const data = canvas.getContext("2d").getImageData(Math.min(left, canvas.width - 1), 4, 1, 1).data;
            return Math.max(...data.slice(0, 3)) - Math.min(...data.slice(0, 3)) > 60;
        }""",
        share,
    )
    return pixels


def chatted(page: Any) -> None:
    """Make two conversations, so that two sequences begin alike."""
    for question in ("How do I pull a model?", "How do I use fewer cores?"):
        page.get_by_role("link", name="New chat").click()
        page.get_by_role("heading", name="New chat").wait_for()
        choose_model(page, "helper:latest")
        ask(page, question)
        ended(page)


def test_every_cell_is_shown(guided: Running, open_page: Open, axe: str) -> None:
    page = open_page(guided)
    chatted(page)
    page.get_by_role("link", name="Live").click()
    part = page.get_by_role("region", name="Cells: all tokens")
    canvas = part.get_by_role("slider", name="Cells of all tokens")
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
    assert faults(page, axe) == []
    if "PICTURES" in os.environ:
        for seed in range(3):
            options = {"num_predict": 400, "temperature": 2, "seed": seed}
            body = {"model": "helper", "prompt": f"Tell me of {seed}", "stream": False, "options": options}
            guided.post("/api/generate", body)
            page.wait_for_timeout(1100)
        page.locator(".scroller").evaluate("scroller => scroller.scrollTo(0, 0)")
        picture(page, "live")


def test_it_reads_one_stream_and_only_while_it_is_seen(guided: Running, open_page: Open) -> None:
    guided.post("/api/generate", {"model": "helper", "prompt": "x", "stream": False})
    page = open_page(guided)
    page.get_by_role("heading", name="New chat").wait_for()
    page.wait_for_load_state("networkidle")  # replies to the first page may be late
    asked: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(guided.url)))
    page.on("requestfailed", lambda request: ended.append(request.url.removeprefix(guided.url)))
    page.get_by_role("link", name="Live").click()
    page.locator("canvas").first.wait_for()
    for _ in range(2):
        with page.expect_response("**/api/live/cache?*"):
            pass
    live = [path for path in asked if path.startswith(("/api/", "/metrics"))]
    assert live.count("/api/live?stream=1") == 1
    cache = [path for path in live if path.startswith("/api/live/cache?model=helper")]
    assert 2 <= len(cache) <= 6
    assert len(live) == 1 + len(cache)
    # The cells are requested only while they are visible; the stream continues.
    page.set_viewport_size({"width": 1280, "height": 130})
    page.wait_for_timeout(300)
    asked.clear()
    page.wait_for_timeout(QUIET)
    assert asked == []
    page.set_viewport_size(DESKTOP)
    with page.expect_request("**/api/live/cache?*"):
        pass
    # A hidden page ends the stream, and begins it again when it is shown.
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    until(page, lambda: "/api/live?stream=1" in ended)
    asked.clear()
    page.wait_for_timeout(QUIET)
    assert asked == []
    with page.expect_request("**/api/live?stream=1"):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    ended.clear()
    page.get_by_role("link", name="New chat").click()
    page.get_by_role("heading", name="New chat").wait_for()
    until(page, lambda: ended == ["/api/live?stream=1"])
    asked.clear()
    page.wait_for_timeout(QUIET)
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
    page.locator("canvas").first.wait_for()
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


def test_what_a_window_has_dropped_is_seen(windowed: Running, open_page: Open, axe: str) -> None:
    counts = []
    for begin in range(4):  # until the computed tokens exceed the cells of the window
        answer = write(windowed, "gemma3", "0123456789"[begin:] * 24, num_predict=9)
        counts.append(answer["prompt_eval_count"] + 8)
    page = open_page(windowed, "/#/live")
    window, whole = kinds(page, WINDOW, ALL)
    window.get_by_text("tokens dropped by the window").first.wait_for()
    legend = page.get_by_role("list", name="Legend").inner_text()
    for meaning in ("color of its sequence", "shared", "free", "dropped", "pointed at"):
        assert meaning in legend
    assert "dropped" not in whole.locator(".row").inner_text()
    lanes = [part.get_by_role("slider", name="Tokens by position") for part in (window, whole)]
    # The window has only the end of the first sequence; the other cells have all of it.
    share = counts[0] / max(counts)
    shares = (0.1 * share, 0.5 * share, 0.995 * share)
    assert [colored(lanes[0], each) for each in shares] == [False, False, True]
    assert [colored(lanes[1], each) for each in shares] == [True, True, True]
    lanes[0].hover(position={"x": 27, "y": 5})
    window.get_by_text("The window has dropped sequence 0, position 0.").wait_for()
    whole.get_by_text("sequence 0, position 0").wait_for()
    page.mouse.move(0, 0)
    window.get_by_text("Point at a cell").wait_for()
    table = page.get_by_role("region", name="Sequences").inner_text()
    assert f"{counts[0]}\t" in table
    assert "dropped" in table
    for lane in lanes:  # the last common token
        lane.press("End")
        window.get_by_text(f"sequence 0, position {counts[0] - 1}").wait_for()
    lanes[0].hover(position={"x": 60, "y": 5})
    picture(page, "live-window")
    assert faults(page, axe) == []


def test_cells_fit_a_phone_and_are_touched(windowed: Running, open_page: Open) -> None:
    write(windowed, "gemma3", "0123456789" * 20, num_predict=9)
    page = open_page(windowed, "/#/live", viewport=PHONE, has_touch=True, is_mobile=True, color_scheme="dark")
    page.get_by_label("The cache of").select_option("gemma3:latest")
    page.get_by_role("region", name="Live view of the server").evaluate("all => all.scrollTo(0, 2000)")
    whole = page.get_by_role("region", name=f"Cells: {ALL}")
    cells = whole.get_by_role("slider", name="Cells of")
    cells.wait_for()
    for part in page.locator(".live .card, .live canvas").all():
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    cells.tap(position={"x": 5, "y": 5})
    whole.get_by_text("Cell 0: sequence").wait_for()
    page.locator("[aria-pressed=true]").wait_for(state="attached")
    picture(page, "live-phone")


def test_a_token_is_followed_by_pointing_and_by_keys(windowed: Running, open_page: Open) -> None:
    prompt = "0123456789" * 6
    for text in (prompt, prompt[:40] + "abcd"):
        write(windowed, "lfm2", text, num_predict=8)
    page = open_page(windowed, "/#/live")
    page.get_by_label("The cache of").select_option("lfm2:latest")
    whole, states = kinds(page, ALL, STATES)
    cells = whole.get_by_role("slider", name="Cells of")
    cells.wait_for()

    def drawn() -> list[str]:
        return [canvas.evaluate("canvas => canvas.toDataURL()") for canvas in page.locator("canvas").all()]

    before = drawn()
    cells.hover(position={"x": 3, "y": 3})
    whole.get_by_text("Cell 0: sequence").wait_for()
    states.get_by_text("Row ", exact=False).and_(states.locator(".pointed")).wait_for()  # that has read it
    assert all(one != other for one, other in zip(before, drawn(), strict=True))
    page.mouse.move(0, 0)
    whole.get_by_text("Point at a cell").wait_for()
    assert drawn() == before
    # The same by keys.
    cells.focus()
    whole.get_by_text("Cell 0: sequence").wait_for()
    page.keyboard.press("ArrowRight")
    whole.get_by_text("position 1").wait_for()
    assert "Cell 1: sequence" in (cells.get_attribute("aria-valuetext") or "")
    page.keyboard.press("Tab")
    lanes = whole.get_by_role("slider", name="Tokens by position")
    assert lanes.evaluate("canvas => canvas === document.activeElement")
    page.keyboard.press("End")
    last = max(slot["tokens"] for slot in windowed.get("/api/live/cache?model=lfm2").json["slots"]) - 1
    whole.get_by_text(f"position {last}").wait_for()
    page.keyboard.press("ArrowLeft")
    whole.get_by_text(f"position {last - 1}").wait_for()
    # The rows of the table, which Tab reaches, do the same.
    page.get_by_role("button", name="Show the cells of sequence 0").focus()
    whole.get_by_text("Sequence 0: ").wait_for()
    assert drawn() != before
    page.get_by_role("button", name="Show the cells of sequence 0").blur()
    whole.get_by_text("Point at a cell").wait_for()
    assert drawn() == before
    cells.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show the cells of sequence").and_(
        page.locator("[aria-pressed=true]")
    ).wait_for()


def test_cached_guessed_and_dropped_tokens_over_time(windowed: Running, open_page: Open) -> None:
    page = open_page(windowed, "/#/live")
    names = ("Cached prompt tokens", "Draft tokens", "Dropped tokens")
    cached, guessed, dropped = (page.get_by_role("figure").filter(has_text=name) for name in names)
    cached.locator("polyline").nth(2).wait_for(state="attached")  # two seconds are shown
    before = windowed.get("/api/live").json["models"]
    for _ in range(2):
        write(windowed, "gemma3", "0123456789" * 90, num_predict=250)
    dropped.locator("strong").get_by_text("0", exact=True).wait_for()
    for chart in (cached, dropped):
        chart.get_by_text(re.compile("peak [1-9]")).wait_for()
    wait_until(lambda: not any(each["running"] for each in windowed.get("/api/live").json["models"]))

    def total(of: Any) -> int:
        return sum(map(of, windowed.get("/api/live").json["models"]))

    def tells(figure: Any, of: Any) -> None:
        until(page, lambda: f"{total(of):,} in total" in figure.inner_text())

    tells(dropped, lambda each: each["dropped_tokens"])
    tells(cached, lambda each: sum(each["cached_tokens_by_tier"].values()))
    tells(guessed, lambda each: each["proposed_tokens"])
    assert total(lambda each: each["dropped_tokens"]) > sum(each["dropped_tokens"] for each in before)


def test_on_a_phone_and_without_a_model(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/live", viewport=PHONE, has_touch=True, is_mobile=True)
    page.get_by_text("No model is in memory").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
