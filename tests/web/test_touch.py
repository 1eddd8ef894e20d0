"""Fingers hit targets of 44 pixels in every view."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import PHONE, Open, ask, ended
from tests.web.test_chat import PIXEL, RICH
from tests.web.test_schema_editor import PERSON

pytestmark = pytest.mark.slow

# Links and tokens inside of a text are as large as their words; a box to tick belongs to its label.
SMALL = """() => [...document.querySelectorAll("button, a, select, input, textarea, summary, label.check")]
    .filter(each => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
    .filter(each => !each.matches(".markdown a, .skip, label.check input, .markdown input"))
    .map(each => [each, each.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.right > 0 && (box.height < 43.9 || box.width < 43.9))
    .map(([each, box]) => `${each.outerHTML.slice(0, 120)} ${box.width} x ${box.height}`)"""


@pytest.fixture
def phone(fake: Running, open_page: Open) -> Any:
    return open_page(fake, viewport=PHONE, has_touch=True, is_mobile=True)


def test_targets_of_a_chat(phone: Any, script: Script) -> None:
    assert phone.evaluate(SMALL) == []
    image = {"name": "x.png", "mimeType": "image/png", "buffer": PIXEL}
    text = {"name": "x.txt", "mimeType": "text/plain", "buffer": b"x"}
    phone.get_by_label("Files", exact=True).set_input_files([image, text])
    phone.get_by_role("button", name="Remove x.txt").wait_for()
    assert phone.evaluate(SMALL) == []
    phone.get_by_role("button", name="Remove image 1").tap()
    script.pieces = ("<think>", "hm", "</think>", RICH)
    script.reason = "length"
    ask(phone, "x")
    ended(phone)
    phone.get_by_role("button", name="Answer again", exact=True).tap()
    ended(phone)
    phone.get_by_text("Thoughts").tap()
    phone.locator(".figures summary").tap()
    assert phone.evaluate(SMALL) == []
    phone.get_by_role("button", name="Edit the question").tap()
    assert phone.evaluate(SMALL) == []
    phone.get_by_role("button", name="Menu").tap()
    phone.get_by_role("link", name="Live").wait_for()
    assert phone.evaluate(SMALL) == []
    phone.locator(".entry").get_by_role("button", name="Delete").tap()
    assert phone.evaluate(SMALL) == []
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_targets_of_the_settings(phone: Any) -> None:
    phone.get_by_role("button", name="Settings", exact=True).tap()
    panel = phone.get_by_role("region", name="Settings of this conversation")
    panel.get_by_label("Temperature").fill("1")
    panel.get_by_label("Thinking").select_option("no")
    panel.get_by_label("Stays loaded").fill("1h")
    panel.get_by_label("Authorization header").fill("x")
    assert phone.evaluate(SMALL) == []
    panel.get_by_label("JSON schema that answers follow").fill(json.dumps(PERSON))
    panel.get_by_role("button", name="Edit the schema as fields").tap()
    phone.get_by_role("dialog").get_by_role("button").first.wait_for()
    assert phone.evaluate(SMALL) == []


@pytest.mark.parametrize("place", ["models", "live"])
def test_targets_of_other_pages(phone: Any, fake: Running, place: str) -> None:
    phone.goto(f"{fake.url}/#/{place}")
    phone.locator(".page").wait_for()
    if place == "models":
        phone.get_by_text("Details").first.tap()
        phone.get_by_text("Fits: ").first.tap()
    assert phone.evaluate(SMALL) == []
