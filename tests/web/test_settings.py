"""The settings show their defaults, take numbers by field and by slider, and are reset one by one or all."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.tiny_llama import write_tiny_llama
from tests.web.conftest import PHONE, Open, ask, ended
from tests.web.test_chat import asked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """Run a server whose model sets a temperature and a system prompt itself."""
    folder = tmp_path_factory.mktemp("tuned")
    recipe = Recipe(
        sources=[write_tiny_llama(folder / "tuned.gguf")],
        system="Be kind.",
        parameters={"temperature": 0.6, "stop": ["x"]},
    )
    for _ in create(Store(folder), ModelName.parse("tuned"), recipe):
        pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        yield server


def opened(page: Any) -> Any:
    page.get_by_role("button", name="Settings", exact=True).click()
    return page.get_by_role("region", name="Settings of this conversation")


def slider_of(panel: Any, label: str) -> Any:
    return (
        panel.locator(".option").filter(has=panel.page.get_by_text(label, exact=True)).locator("[type=range]")
    )


def test_defaults_are_shown_changed_and_reset(tuned: Running, script: Script, open_page: Open) -> None:
    page = open_page(tuned)
    panel = opened(page)
    temperature = panel.get_by_label("Temperature")
    panel.get_by_text("Default: 0.6 (set by the model).").wait_for()
    assert temperature.get_attribute("placeholder") == "0.6"
    assert panel.get_by_label("Top p").get_attribute("placeholder") == "0.9"
    assert panel.get_by_label("Seed").get_attribute("placeholder") == "a fresh one"
    assert panel.get_by_label("System prompt").get_attribute("placeholder") == "Be kind."
    assert slider_of(panel, "Temperature").input_value() == "0.6"
    panel.get_by_label("Context").and_(panel.locator("[placeholder='256']")).wait_for()
    assert panel.get_by_role("button", name="Reset", exact=True).count() == 0
    # Values between the steps are taken, values out of the range and fractions of integers are not.
    temperature.fill("0.33")
    panel.get_by_label("Top p").fill("1.5")
    panel.get_by_label("Top k").fill("7.5")
    panel.get_by_label("Top k").press("Tab")
    slider_of(panel, "Min p").fill("0.25")
    assert panel.get_by_label("Min p").input_value() == "0.25"
    ask(page, "x")
    ended(page)
    options = asked(script).options
    assert (options["temperature"], options["min_p"]) == (0.33, 0.25)
    assert options.get("top_p", 0.9) == 0.9
    assert options.get("top_k", 40) == 40
    panel = page.get_by_role("region", name="Settings of this conversation")
    if not panel.is_visible():
        opened(page)
    panel.locator(".option", has_text="Temperature").get_by_role("button", name="Reset").click()
    assert temperature.input_value() == ""
    assert panel.get_by_label("Min p").input_value() == "0.25"
    panel.get_by_role("button", name="Reset all").click()
    assert panel.get_by_label("Min p").input_value() == ""
    assert panel.get_by_role("button", name="Reset all").is_disabled()
    assert slider_of(panel, "Temperature").input_value() == "0.6"


def test_settings_for_new_conversations(tuned: Running, open_page: Open) -> None:
    page = open_page(tuned, viewport=PHONE)
    panel = opened(page)
    panel.get_by_label("Repeat penalty").fill("1.15")
    panel.get_by_label("Stays loaded").fill("1h")
    panel.get_by_label("Thinking").select_option("no")
    panel.get_by_role("button", name="Use for new conversations").click()
    panel.get_by_text("New conversations will use these settings.").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.reload()
    panel = opened(page)
    assert panel.get_by_label("Repeat penalty").input_value() == "1.15"
    assert panel.get_by_label("Stays loaded").input_value() == "1h"
    assert panel.locator(".option.changed").count() == 3
