"""Models that are made and copied on the page, and adapters that are loaded, scaled and unloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.adapters import adapted_names, random_adapter
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama
from tests.web.conftest import Open, until

pytestmark = pytest.mark.slow


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Running]:
    """Run a server with the model `base`, and a folder with the adapter `one.gguf` for it."""
    weights = write_tiny_llama(tmp_path / "base.gguf")
    (tmp_path / "lora").mkdir()
    with open_gguf(weights) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    random_adapter(tmp_path / "lora" / "one.gguf", shapes, 1, rank=4)
    store = Store(tmp_path / "models")
    list(create(store, ModelName.parse("base"), Recipe(sources=[weights])))
    settings = Settings(address=SOMEWHERE, adapters=tmp_path / "lora")
    with running(settings, tmp_path / "models", Script().open) as server:
        yield server


def test_a_model_is_made_of_another(workshop: Running, open_page: Open) -> None:
    page = open_page(workshop, "/#/models")
    page.get_by_role("button", name="Make a model from base:latest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("brief")
    dialog.get_by_label("System prompt").fill("Be brief.")
    dialog.get_by_label("Parameters").fill("temperature 0.25\nstop a\nstop b\nheat\n")
    dialog.get_by_role("button", name="Make").click()
    dialog.get_by_text("is not a name and a value").wait_for()
    dialog.get_by_label("Parameters").fill("temperature warm")
    dialog.get_by_role("button", name="Make").click()
    dialog.get_by_text("temperature").last.wait_for()
    dialog.get_by_label("Parameters").fill("temperature 0.25\nstop a\nstop b\n")
    dialog.get_by_role("button", name="Make").click()
    dialog.wait_for(state="detached")
    card = page.locator(".models .card").filter(has_text="brief:latest")
    card.get_by_text("Details").click()
    card.get_by_text("System prompt").click()
    card.get_by_text("Be brief.").wait_for()
    shown = workshop.post("/api/show", {"model": "brief"}).json
    assert shown["system"] == "Be brief."
    rows = sorted(line.split() for line in shown["parameters"].splitlines())
    assert rows == [["stop", '"a"'], ["stop", '"b"'], ["temperature", "0.25"]]


def test_closing_the_dialog_ends_the_work(workshop: Running, open_page: Open) -> None:
    page = open_page(workshop, "/#/models")
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))
    page.route("**/api/create", lambda route: None)  # never answered
    page.get_by_role("button", name="Make a model from base:latest").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("base")
    dialog.get_by_text("base:latest exists, and is replaced.").wait_for()
    dialog.get_by_role("button", name="Make").click()
    dialog.get_by_text("beginning").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    until(page, lambda: bool(ended))
    assert ended == [f"{workshop.url}/api/create"]


def test_a_model_is_copied(workshop: Running, open_page: Open) -> None:
    page = open_page(workshop, "/#/models")
    page.get_by_role("button", name="Copy base:latest").click()
    page.get_by_label("Second name").fill("../twin")
    page.get_by_role("dialog").get_by_role("button", name="Copy").click()
    page.get_by_text("is invalid").wait_for()
    page.get_by_label("Second name").fill("twin")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete twin:latest").wait_for()
    page.get_by_role("dialog").wait_for(state="detached")


def test_adapters_are_loaded_scaled_and_forgotten(workshop: Running, open_page: Open) -> None:
    page = open_page(workshop, "/#/models")
    part = page.get_by_role("region", name="LoRA adapters")
    part.get_by_label("Adapter's name").fill("sql")
    part.get_by_label("File in the server's folder").fill("../none.gguf")
    part.get_by_label("For the model").select_option("base:latest")
    part.get_by_role("button", name="Load", exact=True).click()
    part.get_by_text("there is no adapter").wait_for()
    part.get_by_label("File in the server's folder").fill("one.gguf")
    part.get_by_role("button", name="Load", exact=True).click()
    scale = part.get_by_label("Scale of sql")
    assert scale.input_value() == "0"
    scale.fill("0.5")
    with page.expect_response("**/lora-adapters"):
        scale.press("Enter")
    (listed,) = workshop.get("/lora-adapters").json
    assert (listed["name"], listed["scale"], listed["model"]) == ("sql", 0.5, "base:latest")
    part.get_by_role("button", name="Unload sql").click()
    scale.wait_for(state="detached")
    assert workshop.get("/lora-adapters").json == []
