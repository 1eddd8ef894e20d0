"""The end of a conversation stays visible, unless the reader has scrolled up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import PHONE, Open, ask, ended
from tests.web.test_chat import held

__all__ = ["held"]

pytestmark = pytest.mark.slow

FORMULAS = "".join(
    f"Line {n}: $$\\sum_{{k=0}}^{{{n}}} \\frac{{k^2}}{{\\sqrt{{k+1}}}}$$\n\n" for n in range(30)
)
CODE = "".join(f"```python\ndef f{n}(x):\n    return x\n```\n\n" for n in range(12))
LONG = "A line of text.\n\n" * 60
AT_END = """() => {
    const box = document.querySelector(".scroller");
    return box.scrollHeight - box.scrollTop - box.clientHeight < 3;
}"""


def stays_at_end(page: Any) -> None:
    """Wait until the end is visible, and check that it still is a few frames later."""
    page.wait_for_function(AT_END)
    page.wait_for_timeout(150)
    assert page.evaluate(AT_END)
    assert page.get_by_role("button", name="To the end").count() == 0


def scroll_up(page: Any, pixels: int) -> float:
    """Turn the wheel over the messages, and return where they are then."""
    before = page.locator(".scroller").evaluate("box => box.scrollTop")
    page.locator(".scroller").hover(position={"x": 200, "y": 200})
    page.mouse.wheel(0, -pixels)
    page.wait_for_function("(top) => document.querySelector('.scroller').scrollTop < top", arg=before)
    page.wait_for_timeout(150)
    top: float = page.locator(".scroller").evaluate("box => box.scrollTop")
    return top


def in_pieces(text: str) -> tuple[str, ...]:
    return tuple(text[at : at + 40] for at in range(0, len(text), 40))


@pytest.mark.parametrize("text", [FORMULAS, CODE, LONG], ids=["formulas", "code", "text"])
def test_the_page_follows_an_answer(fake: Running, script: Script, open_page: Open, text: str) -> None:
    script.pieces = in_pieces(text)
    page = open_page(fake)
    for count in 1, 2:
        ask(page, f"question {count}")
        ended(page, count)
        stays_at_end(page)


def test_what_was_sent_is_shown_after_scrolling_up(fake: Running, script: Script, open_page: Open) -> None:
    script.pieces = in_pieces(LONG)
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    stays_at_end(page)
    scroll_up(page, 3000)
    script.pieces = ("short",)
    ask(page, "sent from above")
    page.get_by_text("short", exact=True).wait_for()
    stays_at_end(page)
    scroll_up(page, 3000)
    page.get_by_role("button", name="Answer again", exact=True).last.evaluate("button => button.click()")
    ended(page, 2)
    stays_at_end(page)


def test_a_reader_who_scrolled_up_stays_there(
    fake: Running, script: Script, held: threading.Event, open_page: Open
) -> None:
    held.set()
    script.pieces = in_pieces(LONG)
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    stays_at_end(page)
    held.clear()
    ask(page, "two")
    page.locator("article.answered[aria-busy=true]").wait_for()
    stays_at_end(page)
    top = scroll_up(page, 30)
    held.set()
    ended(page, 2)
    assert page.locator(".scroller").evaluate("box => box.scrollTop") == top
    page.get_by_role("button", name="To the end").click()
    stays_at_end(page)
    assert page.evaluate("document.activeElement.ariaLabel") == "Messages"


def test_what_the_reader_opens_stays_in_place(fake: Running, script: Script, open_page: Open) -> None:
    script.pieces = ("<think>", *in_pieces(LONG), "</think>", "done")
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    summary = page.get_by_text("Thoughts")
    before = summary.bounding_box()
    summary.click()
    page.get_by_role("button", name="To the end").wait_for()
    page.wait_for_timeout(150)
    assert summary.bounding_box() == before
    summary.click()
    page.get_by_role("button", name="To the end").wait_for(state="detached")


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.get_by_role("textbox", name="Message").fill("a\n" * 8),
        lambda page: page.set_viewport_size({"width": 700, "height": 500}),
        lambda page: page.evaluate(
            """() => {
                const late = document.createElement("img");
                const picture = "<svg xmlns='http://www.w3.org/2000/svg' width='90' height='900'/>";
                late.src = `data:image/svg+xml,${picture}`;
                document.querySelector(".answered .markdown").append(late);
            }"""
        ),
    ],
    ids=["a longer draft", "a smaller window", "a late image"],
)
def test_the_end_stays_visible_after(
    fake: Running, script: Script, open_page: Open, change: Callable[[Any], None]
) -> None:
    script.pieces = in_pieces(LONG)
    page = open_page(fake)
    ask(page, "one")
    ended(page)
    stays_at_end(page)
    change(page)
    page.wait_for_timeout(100)
    stays_at_end(page)


def test_a_conversation_opens_at_its_end(fake: Running, script: Script, open_page: Open) -> None:
    script.pieces = in_pieces(FORMULAS)
    page = open_page(fake, viewport=PHONE, has_touch=True, is_mobile=True)
    ask(page, "one")
    ended(page)
    stays_at_end(page)
    page.reload()
    ended(page)
    page.locator(".katex").last.wait_for()
    stays_at_end(page)
