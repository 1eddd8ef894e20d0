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
from tests.server.running import Running, running, wait_until
from tests.web.conftest import PHONE, Open

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
    store = Store(tmp_path)
    for _ in create(store, ModelName.parse("small"), Recipe(sources=[tiny_llama])):
        pass
    store.copy(ModelName.parse("small"), ModelName.parse("twin"))
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as server:
        page = open_page(server, "/#/models")
        page.get_by_role("button", name="Delete twin:latest").click()
        page.get_by_text("This frees no space on the server's disk").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete twin:latest").wait_for(state="detached")
        page.get_by_role("button", name="Delete small:latest").click()
        page.get_by_text("This frees 389 KB of the server's disk. To use it again").wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert server.get("/api/tags").json["models"][0]["name"] == "small:latest"
        page.get_by_role("button", name="Delete small:latest").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete small:latest").wait_for(state="detached")
        assert "small:latest" not in {each["name"] for each in server.get("/api/tags").json["models"]}


def test_the_guide_is_a_part_of_chaski(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/models")
    card = page.locator(".models .card").filter(has_text="guide:latest")
    card.get_by_text("cannot be deleted").wait_for()
    assert card.get_by_role("button", name="Delete guide:latest").count() == 0
    card.get_by_role("button", name="Copy guide:latest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The copy takes 8.4 MB of the server's disk").wait_for()
    dialog.get_by_label("Second name").fill("Thinker")
    dialog.get_by_text("thinker:latest exists, and is replaced.").wait_for()
    dialog.get_by_label("Second name").fill("guide")
    dialog.get_by_text("guide:latest is a part of chaski. Choose another name for your model.").wait_for()
    dialog.get_by_role("button", name="Copy", exact=True).click()
    dialog.get_by_role("alert").get_by_text("'guide' is a part of chaski").wait_for()


def test_a_chat_is_begun_from_a_model(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/models")
    page.get_by_role("link", name="Chat with guide:latest").click()
    page.get_by_label("Model", exact=True).get_by_text("guide:latest").wait_for()


def test_models_to_get(fake: Running, open_page: Open) -> None:
    """The list is dated, says what fits, and marks the models that are here."""
    fake.post("/api/copy", {"source": "thinker", "destination": "qwen3:8b"})
    try:
        page = open_page(fake, "/#/models")

        def suggest(route: Any) -> None:
            reply = route.fetch()
            told = reply.json()
            for model in told["models"]:
                model["fits"] = model["name"] != "qwen3-coder:30b"
            route.fulfill(response=reply, body=json.dumps(told))

        page.route("**/api/suggestions", suggest)
        page.get_by_text("Models to get").click()
        page.get_by_text("A list of November 2026.").wait_for()
        small = page.locator(".suggestion").filter(has_text="gemma3:1b")
        assert "815 MB to download · about 1.2 GB of memory · Gemma Terms of Use" in small.inner_text()
        small.get_by_text("Fits this machine").wait_for()
        small.get_by_role("button", name="Pull Gemma 3 1B").wait_for()
        large = page.locator(".suggestion").filter(has_text="qwen3-coder:30b")
        large.get_by_text("Needs more memory than this machine has free.").wait_for()
        page.locator(".suggestion").filter(has_text="Qwen 3 8B").get_by_text("Here").wait_for()
    finally:
        fake.ask("DELETE", "/api/delete", {"model": "qwen3:8b"})


def test_pasted_commands_and_links_are_pulled(fake: Running, open_page: Open) -> None:
    asked: list[Any] = []

    def pull(route: Any) -> None:
        asked.append(route.request.post_data_json["model"])
        route.fulfill(body=lines({"status": "success"}), content_type="application/x-ndjson")

    page = open_page(fake, "/#/models")
    page.route("**/api/pull", pull)
    field = page.get_by_label("Name of a model to pull")
    field.fill(" $ ollama run llama3.2:1b ")
    page.get_by_text("This pulls llama3.2:1b.").wait_for()
    field.press("Enter")
    wait_until(lambda: field.input_value() == "")
    field.fill("https://huggingface.co/a/b-GGUF/blob/main/b-Q4_K_M.gguf?download=true")
    page.get_by_role("button", name="Pull", exact=True).click()
    wait_until(lambda: field.input_value() == "" and len(asked) == 2)
    assert asked == ["llama3.2:1b", "hf.co/a/b-GGUF:Q4_K_M"]
    field.fill("chaski run thinker")
    page.get_by_text("thinker:latest is here. A pull fetches what has changed since.").wait_for()
    field.fill("a model that can see")
    field.press("Enter")
    page.get_by_text("names no model; give a name such as").wait_for()
    assert field.input_value() == "a model that can see"
    assert field.get_attribute("aria-invalid") == "true"


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
    page.route(
        "**/api/pull", lambda route: route.fulfill(status=404, body='{"error": "file does not exist"}')
    )
    page.get_by_label("Name of a model to pull").fill("none")
    page.get_by_role("button", name="Pull", exact=True).click()
    page.get_by_text("file does not exist").wait_for()
    page.get_by_role("button", name="Stop pulling none:latest").click()
    page.get_by_role("group", name="Pull of none:latest").wait_for(state="detached")


def test_targets_on_a_phone_are_large_enough_to_touch(fake: Running, open_page: Open) -> None:
    page = open_page(fake, "/#/models", viewport=PHONE, has_touch=True, is_mobile=True)
    page.get_by_text("Models to get").tap()
    page.get_by_role("button", name="Pull Gemma 3 1B").wait_for()
    small = """() => [...document.querySelectorAll(".page :is(button, a, input, select, summary)")]
        .filter((each) => each.getBoundingClientRect().height < 44)
        .map((each) => each.outerHTML)"""
    assert page.evaluate(small) == []
    page.get_by_role("button", name="Copy guide:latest").tap()
    page.get_by_role("dialog").wait_for()
    assert page.evaluate(small.replace(".page", "dialog")) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
