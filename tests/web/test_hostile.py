"""Answers of a hostile model: no part runs, loads, or blocks the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import Open, ask, ended

pytestmark = pytest.mark.slow

RUNS = "window.ran = (window.ran ?? 0) + 1"
MARKUP = [
    f"<script>{RUNS}</script>",
    f'<img src=x onerror="{RUNS}">',
    f'<svg onload="{RUNS}"><script>{RUNS}</script></svg>',
    f'<iframe srcdoc="<script>parent.{RUNS}</script>"></iframe>',
    f'<details open ontoggle="{RUNS}">x</details>',
    "<style>body { display: none }</style>",
    "<base href='https://example.org/'><meta http-equiv=refresh content='0;url=https://example.org'>",
    f'<form action="https://example.org"><button formaction="javascript:{RUNS}">ok</button></form>',
    f"| <img src=x onerror='{RUNS}'> |\n|---|\n| <script>{RUNS}</script> |",
    f"- <b onclick='{RUNS}'>x</b>\n\n> <a href='javascript:{RUNS}'>y</a>",
    f"```html\n<script>{RUNS}</script>\n```\n\n```mermaid\ngraph TD; A[<img src=x onerror={RUNS}>]\n```",
    f"```<img/src=x/onerror={RUNS.replace(' ', '')}>\ncode\n```",
    f"$\\href{{javascript:{RUNS}}}{{x}}$ $\\includegraphics{{https://example.org/x.png}}$",
    f"$$\\htmlStyle{{position: fixed}}{{x}}$$ $\\url{{javascript:{RUNS}}}$",
]
LINKS = [
    f"[x](javascript:{RUNS})",
    f"[x](JaVaScRiPt:{RUNS.replace(' ', '%20')})",
    "[x](&#106;avascript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x)",
    "[x](file:///etc/passwd)",
    "[x](blob:https://example.org/1)",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    "[x](/api/delete)",
    "[x](//example.org)",
]
LEAKS = [
    "![a](https://example.org/leak.png?secret)",
    "![a](//example.org/leak.png)",
    "[![a](https://example.org/leak.png)](https://example.org)",
    "![a][1]\n\n[1]: https://example.org/leak.png",
    '<link rel=stylesheet href="https://example.org/x.css"><img src="https://example.org/x.png">',
]


def shown(page: Any, script: Script, text: str) -> Any:
    script.pieces = (text,)
    ask(page, "x")
    answer = ended(page)
    page.wait_for_timeout(150)  # formulas and colors appear a little later
    assert page.evaluate("window.ran") is None
    for name in (
        "script",
        "iframe",
        "svg:not(.icon, .katex svg)",
        "style",
        "form",
        "base",
        "object",
        "[onclick]",
    ):
        assert answer.locator(f".markdown {name}").count() == 0
    return answer


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_text(fake: Running, script: Script, open_page: Open, text: str) -> None:
    page = open_page(fake)
    answer = shown(page, script, text)
    assert answer.locator("img").count() == 0
    assert answer.locator("a").count() == 0
    assert page.locator("body").is_visible()
    assert page.url.startswith(fake.url)


@pytest.mark.parametrize("text", LINKS)
def test_links_that_lead_to_no_page_are_text(
    fake: Running, script: Script, open_page: Open, text: str
) -> None:
    assert shown(open_page(fake), script, text).locator("a").count() == 0


@pytest.mark.parametrize("text", LEAKS)
def test_nothing_loads_by_itself(fake: Running, script: Script, open_page: Open, text: str) -> None:
    """`open_page` fails if any request went elsewhere."""
    answer = shown(open_page(fake), script, text)
    assert answer.locator("img").count() == 0
    for link in answer.locator("a").all():
        assert "noopener" in link.get_attribute("rel")
        assert "noreferrer" in link.get_attribute("rel")


@pytest.mark.parametrize(
    "text",
    [
        ">" * 20_000 + " x",
        "> " * 20_000 + " x",
        "\n".join("  " * depth + "- x" for depth in range(400)),
        "- " * 20_000 + "x",
        "[" * 50_000,
        "![" * 20_000,
        "*_" * 30_000 + "x",
        "`" * 50_000 + "x",
        "(" * 20_000 + "$" * 20_000,
        "a $x " * 8_000,
        "\\(" * 20_000,
        "|" * 20_000 + "\n" + "|-" * 10_000,
        "$" + "{" * 5_000 + "$",
        "$\\def\\a{\\a\\a}\\a$",
        "x" * 300_000,
        "<" * 50_000,
        "&" * 50_000,
        "\u202e\u0000\ufffe" * 1000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_texts_that_would_take_long(fake: Running, script: Script, open_page: Open, text: str) -> None:
    page = open_page(fake)
    shown(page, script, text)
    # The page still responds.
    script.pieces = ("alive",)
    ask(page, "y")
    page.get_by_text("alive", exact=True).wait_for()


def test_files_that_are_imported_are_no_more_trusted(fake: Running, open_page: Open, tmp_path: Path) -> None:
    message = {"id": "m", "parent": None, "role": "user", "content": "x", "created": 1}
    whole = {"id": "c", "title": f"<img src=x onerror='{RUNS}'>", "created": 1, "updated": 1, "model": "m"}
    for name, images in (("bad", [f'"><script>{RUNS}</script>']), ("good", [])):
        turns = {"settings": {}, "leaf": "m", "messages": {"m": {**message, "images": images}}}
        text = json.dumps({"format": "chaski-conversations-1", "conversations": [whole | turns]})
        (tmp_path / f"{name}.json").write_text(text)
    page = open_page(fake)
    field = page.get_by_label("File of conversations")
    field.set_input_files(tmp_path / "bad.json")
    page.get_by_text("is incomplete").wait_for()
    field.set_input_files(tmp_path / "good.json")
    page.get_by_text("1 imported.").wait_for()
    page.get_by_role("link", name="<img").click()
    assert page.evaluate("window.ran") is None
