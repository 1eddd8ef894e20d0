"""Wide content scrolls inside its own box, and text goes in its own direction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import DESKTOP, PHONE, Open, answers, ask, ended

pytestmark = pytest.mark.slow

TABLE = """| Model | Parameters | Quantization | Context length | Architecture | Description |
|---|--:|---|--:|---|---|
| SmolLM2-135M-Instruct | 134515008 | Q4_1 | 8192 | LlamaForCausalLM | answers at once on a small laptop |
"""
MATRIX = "$$" + " + ".join(f"a_{{{number}}}" for number in range(60)) + "$$"
INLINE = (
    "so $\\begin{pmatrix}" + " & ".join(f"a_{{{number}}}" for number in range(30)) + "\\end{pmatrix}$ it is"
)
WIDE = "\n\n".join(
    [TABLE, MATRIX, INLINE, f"```python\nx = '{'long ' * 60}'\n```", "| a | b |\n|---|---|\n| 1 | 2 |"]
)

MIXED = """مرحبا `ls -la` بالعالم

English first, ثم العربية

1. أولا: افتح الملف
2. Second is English
3. שלישי בעברית
   - פריט
   - nested
4. קוד:
   ```
   x
   ```

- פריט ראשון

  פסקה שנייה

  A paragraph in English.
- [x] משימה

> اقتباس $a^2$ هنا

> a quote

| الاسم | b |
|---|---|
| تفاح | apple |

## עברית
"""


def scrolls(page: Any, selector: str) -> list[bool]:
    """Return for each element whether it is wider inside than outside, and reached by Tab."""
    found: list[bool] = page.locator(selector).evaluate_all(
        "all => all.map(each => each.scrollWidth > each.clientWidth && each.tabIndex === 0)"
    )
    return found


def direction(place: Any) -> str:
    found: str = place.evaluate("each => getComputedStyle(each).direction")
    return found


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_wide_content_scrolls_in_its_own_box(
    fake: Running, script: Script, open_page: Open, viewport: dict[str, int]
) -> None:
    script.pieces = (WIDE,)
    page = open_page(fake, viewport=viewport)
    ask(page, "x")
    ended(page)
    page.locator(".math .katex").nth(1).wait_for()
    page.locator(".math.wide").first.wait_for()
    assert scrolls(page, ".table") == [True, False]
    assert scrolls(page, ".math.block") == [True]
    assert scrolls(page, ".code pre") == [True]
    inline, whole = (page.locator(place).bounding_box() for place in (".math >> nth=1", ".markdown"))
    assert inline["x"] + inline["width"] <= whole["x"] + whole["width"] + 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".scroller").evaluate("each => each.scrollWidth <= each.clientWidth")
    # Each of these cells is one line high, so no word is broken.
    cells = page.locator(".table >> nth=0").locator("td:not(:last-child)")
    heights = cells.evaluate_all(
        """cells => cells.map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return range.getClientRects().length;
        })"""
    )
    assert heights == [1] * 5


def test_a_window_that_becomes_narrow_makes_content_scroll(
    fake: Running, script: Script, open_page: Open
) -> None:
    script.pieces = ("| some words | and more words | and a third column |\n|---|---|---|\n| 1 | 2 | 3 |",)
    page = open_page(fake)
    ask(page, "x")
    ended(page)
    assert scrolls(page, ".table") == [False]
    page.set_viewport_size(PHONE)
    page.locator(".table.wide").wait_for()
    assert scrolls(page, ".table") == [True]


def test_text_goes_in_its_own_direction(fake: Running, script: Script, open_page: Open) -> None:
    script.pieces = (MIXED,)
    page = open_page(fake)
    ask(page, "שלום\nhello")
    ended(page)
    answer = answers(page)
    expected = {
        "p >> text=بالعالم": "rtl",
        "p >> text=English first": "ltr",
        "li >> text=أولا": "rtl",
        "li:has-text('Second is English')": "ltr",
        "li:has-text('שלישי')": "rtl",
        "li li:has-text('nested')": "ltr",
        "p >> text=פסקה שנייה": "rtl",
        "p >> text=A paragraph": "ltr",
        "blockquote >> nth=0": "rtl",
        "blockquote >> nth=1": "ltr",
        "table": "rtl",
        "td:has-text('apple')": "ltr",
        "h3": "rtl",
        "code >> nth=0": "ltr",
        "li .code >> nth=0": "ltr",
        ".math >> nth=0": "ltr",
    }
    assert {selector: direction(answer.locator(selector).first) for selector in expected} == expected
    # The number of an item is on the side where its text begins, and inside of the answer.
    first = answer.locator("ol > li").first.bounding_box()
    whole = answer.locator(".markdown").bounding_box()
    assert first["x"] + first["width"] <= whole["x"] + whole["width"] - 15
    # A box to tick and its text are on one line, also between paragraphs.
    task = answer.locator("li.task")
    assert task.inner_text().strip() == "משימה"
    assert task.bounding_box()["height"] < 40
    # Each line of a question has its own direction.
    question = page.locator("article.asked p")
    assert question.evaluate("each => getComputedStyle(each).unicodeBidi") == "plaintext"
    assert direction(question) == "rtl"
    assert direction(page.get_by_role("link", name="שלום")) == "rtl"
    assert direction(page.get_by_role("heading", name="שלום")) == "rtl"
    composer = page.get_by_role("textbox", name="Message")
    composer.fill("مرحبا")
    assert direction(composer) == "rtl"
    page.get_by_role("button", name="Edit the question").click()
    assert direction(page.get_by_label("Edited question")) == "rtl"
