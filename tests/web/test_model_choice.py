"""The choice of a model: its default, the list to choose from, and what a model cannot do."""

from __future__ import annotations

import json
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
from tests.server.thinker import TEMPLATE
from tests.tiny_llama import write_tiny_llama
from tests.web.accessible import axe, faults
from tests.web.conftest import PHONE, Open, ask, choose_model, ended, picture
from tests.web.test_chat import PIXEL

__all__ = ["axe"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """Run a server whose newest models are a reranker and an embedder."""
    folder = tmp_path_factory.mktemp("several")
    files = {
        "plain:1b": write_tiny_llama(folder / "plain.gguf"),
        "thinker:8b": write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE),
        "vectors": write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1),
        "ranks": write_tiny_llama(folder / "ranks.gguf", llama__pooling_type=4),
    }
    for name, file in files.items():
        list(create(Store(folder), ModelName.parse(name), Recipe(sources=[file])))
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        yield server


def chosen(page: Any, name: str) -> None:
    """Wait until the shown conversation has a model."""
    page.get_by_label("Model", exact=True).get_by_text(name, exact=True).wait_for()


def with_capability(page: Any, name: str, capability: str) -> None:
    """Let the page believe that a model has one more capability."""

    def tags(route: Any) -> None:
        reply = route.fetch()
        found = reply.json()
        for model in found["models"]:
            if model["name"] == name:
                model["capabilities"].append(capability)
        route.fulfill(response=reply, body=json.dumps(found))

    page.route("**/api/tags", tags)
    page.reload()


def test_a_new_browser_begins_with_the_newest_model_that_chats(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    choose_model(page, "plain:1b")
    chosen(page, "plain:1b")
    page.reload()
    chosen(page, "plain:1b")
    page.get_by_role("link", name="New chat").click()
    chosen(page, "plain:1b")


def test_a_model_in_memory_is_preferred(several: Running, open_page: Open) -> None:
    several.post("/api/generate", {"model": "plain:1b"})
    try:
        chosen(open_page(several), "plain:1b")
    finally:
        several.post("/api/generate", {"model": "plain:1b", "keep_alive": 0})


def test_the_list_is_used_by_keyboard(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    button, field = page.get_by_label("Model", exact=True), page.get_by_label("Search models")
    button.press("ArrowDown")
    assert button.get_attribute("aria-expanded") == "true"
    assert page.get_by_role("option", selected=True).inner_text().startswith("thinker:8b")
    assert "F32" in page.get_by_role("option", name="plain:1b").inner_text()
    field.press("ArrowDown")
    picture(page, "model-choice")
    field.press("Enter")
    chosen(page, "plain:1b")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Model"
    # Typing on the button searches; an ability counts as a word.
    button.press("t")
    assert field.input_value() == "t"
    field.fill("tools 96k")
    page.get_by_role("option").nth(1).wait_for(state="detached")
    assert page.locator(f"#{field.get_attribute('aria-activedescendant')}").inner_text().startswith("thinker")
    field.press("Escape")
    assert page.get_by_role("listbox").count() == 0
    chosen(page, "plain:1b")
    button.press("Enter")
    field.fill("thinker")
    field.press("Enter")
    chosen(page, "thinker:8b")
    # A click elsewhere closes the list.
    button.click()
    page.get_by_role("listbox").wait_for()
    page.get_by_role("textbox", name="Message").click()
    page.get_by_role("listbox").wait_for(state="detached")


def test_models_that_cannot_chat_are_listed_but_not_chosen(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    page.get_by_label("Model", exact=True).click()
    last = page.get_by_role("option").last
    assert last.get_attribute("aria-disabled") == "true"
    page.get_by_role("option", name="vectors:latest").click(force=True)
    assert page.get_by_role("listbox").count() == 1
    page.get_by_label("Search models").fill("vectors")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    chosen(page, "thinker:8b")


def test_a_search_without_a_result_leads_to_a_pull(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    page.get_by_label("Model", exact=True).click()
    page.get_by_label("Search models").fill("gemma3:4b")
    page.get_by_text("No model here matches “gemma3:4b”.").wait_for()
    page.get_by_role("link", name="Get “gemma3:4b”").click()
    assert page.get_by_label("Name of a model to pull").input_value() == "gemma3:4b"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_on_a_phone(several: Running, open_page: Open, axe: str, scheme: str) -> None:
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "color_scheme": scheme}
    page = open_page(several, **options)
    chosen(page, "thinker:8b")
    assert faults(page, axe) == []
    button = page.get_by_label("Model", exact=True)
    assert button.bounding_box()["height"] >= 44
    button.tap()
    option = page.get_by_role("option", name="plain:1b")
    assert option.bounding_box()["height"] >= 44
    assert faults(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    option.tap()
    chosen(page, "plain:1b")


def test_a_model_without_vision_is_named_when_an_image_is_attached(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    with_capability(page, "plain:1b", "vision")
    chosen(page, "thinker:8b")
    page.get_by_role("textbox", name="Message").fill("what is this?")
    page.get_by_label("Files", exact=True).set_input_files(
        [{"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}]
    )
    notice = page.get_by_role("alert")
    notice.get_by_text("thinker:8b does not see images.").wait_for()
    assert page.get_by_role("button", name="Send").is_disabled()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remove image 1").click()
    notice.wait_for(state="detached")
    page.get_by_label("Files", exact=True).set_input_files(
        [{"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}]
    )
    notice.get_by_role("button", name="Use plain:1b").click()
    notice.wait_for(state="detached")
    chosen(page, "plain:1b")
    assert page.get_by_role("button", name="Send").is_enabled()


def test_a_file_that_is_longer_than_the_model_reads_is_noticed(several: Running, open_page: Open) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    page.get_by_label("Files", exact=True).set_input_files(
        [{"name": "book.txt", "mimeType": "text/plain", "buffer": b"word " * 1000}]
    )
    page.get_by_text("thinker:8b reads at most 256 tokens, and this is about 1,250.").wait_for()
    assert page.get_by_role("button", name="Send").is_enabled()


def test_a_model_without_tools_or_thoughts_is_named_when_the_settings_need_them(
    several: Running, script: Script, open_page: Open
) -> None:
    page = open_page(several)
    chosen(page, "thinker:8b")
    choose_model(page, "plain:1b")
    page.get_by_role("button", name="Settings").click()
    tool = {
        "type": "function",
        "function": {"name": "get", "parameters": {"type": "object", "properties": {}}},
    }
    page.get_by_label("Tools", exact=False).first.fill(json.dumps([tool]))
    page.get_by_role("button", name="Close the settings").click()
    notice = page.get_by_role("alert")
    notice.get_by_text("plain:1b does not use tools, which the settings offer.").wait_for()
    notice.get_by_role("button", name="Use thinker:8b").click()
    notice.wait_for(state="detached")
    ask(page, "hello")
    ended(page)


def test_a_conversation_whose_model_is_gone(several: Running, script: Script, open_page: Open) -> None:
    several.post("/api/copy", {"source": "plain:1b", "destination": "brief:1b"})
    page = open_page(several)
    choose_model(page, "brief:1b")
    ask(page, "hello")
    ended(page)
    several.ask("DELETE", "/api/delete", {"model": "brief:1b"})
    page.reload()
    notice = page.get_by_role("alert")
    notice.get_by_text("brief:1b is not on this server.").wait_for()
    notice.get_by_role("button", name="Use plain:1b").click()
    notice.wait_for(state="detached")


def test_suggestions_are_sent_by_a_click(several: Running, script: Script, open_page: Open) -> None:
    page = open_page(several)
    question = page.get_by_role("button", name="Explain how a hash table works, with a small example.")
    question.click()
    assert "hello" in ended(page).inner_text()
    assert "Explain how a hash table works" in page.get_by_role("article", name="You").inner_text()
    assert page.get_by_role("region", name="Get a model").count() == 0


def test_while_only_the_guide_is_here_a_model_is_offered(
    tmp_path: Path, script: Script, open_page: Open, axe: str
) -> None:
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as server:
        page = open_page(server)
        page.get_by_role("heading", name="Ask about chaski").wait_for()
        part = page.get_by_role("region", name="Get a model")
        part.get_by_role("button", name="Pull Gemma 3 1B").wait_for()
        picture(page, "get-a-model")
        asked: list[Any] = []

        def pull(route: Any) -> None:
            asked.append(route.request.post_data_json)
            half = {
                "status": "pulling",
                "digest": "sha256:" + "a" * 64,
                "total": 4_000_000,
                "completed": 1_000_000,
            }
            route.fulfill(body=json.dumps(half) + "\n" + json.dumps({"error": "the disk is full"}) + "\n")

        page.route("**/api/pull", pull)
        part.get_by_role("button", name="Pull Gemma 3 1B").click()
        part.get_by_text("the disk is full").wait_for()
        assert asked == [{"model": "gemma3:1b"}]
        assert faults(page, axe) == []
        assert page.locator(".scroller").first.evaluate("box => box.scrollTop") == 0
        part.get_by_role("link").click()
        page.get_by_role("heading", name="Models to get").wait_for()
        page.get_by_role("button", name="Pull Qwen 3 Coder 30B").wait_for()
        assert faults(page, axe) == []
