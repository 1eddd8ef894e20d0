"""Exports of ChatGPT and Open WebUI become conversations, once, and harm nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import Open, answers, ask, ended
from tests.web.test_chat import PIXEL
from tests.web.test_hostile import RUNS

pytestmark = pytest.mark.slow


def node(name: str, parent: str | None, role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    content = {"content_type": "multimodal_text", "parts": list(parts)}
    message = {"id": name, "author": {"role": role}, "content": content, "create_time": 1.7e9, **more}
    return {"id": name, "parent": parent, "children": [], "message": message}


def of_chatgpt(number: int, title: str, *nodes: dict[str, Any]) -> dict[str, Any]:
    mapping = {each["id"]: each for each in nodes}
    return {
        "id": f"{number}-x",
        "title": title,
        "create_time": 1.7e9 + number,
        "update_time": 1.7e9 + number,
        "mapping": mapping,
        "current_node": nodes[-1]["id"],
    }


def pointer(name: str) -> dict[str, str]:
    return {"content_type": "image_asset_pointer", "asset_pointer": f"file-service://{name}"}


def test_an_archive_of_chatgpt(fake: Running, script: Script, open_page: Open, tmp_path: Path) -> None:
    lost = {"attachments": [{"id": "file-gone", "name": "lost.png"}]}
    roads = of_chatgpt(
        1,
        "Inca roads",
        node("u", None, "user", pointer("file-here"), pointer("file-gone"), "How long?", metadata=lost),
        node("a", "u", "assistant", "Long.", metadata={"model_slug": "gpt-4o"}),
        node("b", "u", "assistant", "**Very** long."),
    )
    hostile = of_chatgpt(
        2, f"<img src=x onerror='{RUNS}'>", node("u", None, "user", f"<script>{RUNS}</script>")
    )
    with ZipFile(tmp_path / "export.zip", "w", ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", f"<script>{RUNS}</script>")
        archive.writestr("conversations.json", json.dumps([roads, hostile, 7]))
        archive.writestr("file-here-photo.png", PIXEL)
    page = open_page(fake)
    field = page.get_by_label("File of conversations")
    field.set_input_files(tmp_path / "export.zip")
    page.get_by_text("2 imported. 1 could not be read. An image is not in the file: lost.png.").wait_for()
    page.get_by_role("link", name="Inca roads").click()
    page.get_by_text("[Image lost.png is not in the export.]").wait_for()
    source = page.get_by_alt_text("Image 1 of the question").get_attribute("src")
    assert source.endswith(base64.b64encode(PIXEL).decode())
    answers(page).locator("strong", has_text="Very").wait_for()
    page.get_by_role("button", name="Earlier version").click()
    page.get_by_role("article", name="Answer of gpt-4o").get_by_text("Long.").wait_for()
    page.get_by_role("link", name="<img").click()
    page.get_by_text("<script>").wait_for()
    # The conversation continues with a model of this server.
    page.get_by_role("button", name="Edit the question").click()
    page.get_by_label("Edited question").fill("What now?")
    page.get_by_role("button", name="Ask", exact=True).click()
    assert "hello" in ended(page).inner_text()
    ask(page, "And now?")
    assert "hello" in ended(page).last.inner_text()
    assert page.evaluate("window.ran") is None
    # A second import adds what is new.
    new = of_chatgpt(3, "Rivers", node("u", None, "user", "Which?"))
    (tmp_path / "conversations.json").write_text(json.dumps([roads, hostile, new]))
    field.set_input_files(tmp_path / "conversations.json")
    page.get_by_text("1 imported, 2 were already here.").wait_for()
    page.reload()
    page.get_by_role("link", name="Rivers").wait_for()
    assert page.locator(".entry").count() == 3


def test_an_export_of_open_webui(fake: Running, open_page: Open, tmp_path: Path) -> None:
    data = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    question = {"id": "u", "parentId": None, "childrenIds": ["a"], "role": "user", "content": "Which?"}
    answer = {"id": "a", "parentId": "u", "childrenIds": [], "role": "assistant", "model": "thinker:latest"}
    thought = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> so it is\n</details>\n'
    messages = {
        "u": question | {"files": [{"type": "image", "url": data}]},
        "a": answer | {"content": f"{thought}The Amazon."},
    }
    history = {"messages": messages, "currentId": "a"}
    chat = {"title": "Rivers", "models": ["thinker:latest"], "history": history}
    (tmp_path / "chat-export.json").write_text(json.dumps([{"id": "b-2", "title": "Rivers", "chat": chat}]))
    page = open_page(fake)
    page.get_by_label("File of conversations").set_input_files(tmp_path / "chat-export.json")
    page.get_by_text("1 imported.", exact=True).wait_for()
    page.get_by_role("link", name="Rivers").click()
    page.get_by_alt_text("Image 1 of the question").wait_for()
    page.get_by_text("The Amazon.").wait_for()
    page.get_by_text("Thoughts").click()
    page.get_by_text("so it is").wait_for()


def test_files_that_are_no_exports(fake: Running, open_page: Open, tmp_path: Path) -> None:
    page = open_page(fake)
    field = page.get_by_label("File of conversations")
    for name, content, problem in (
        ("cut.json", b'[{"mapping": {', "cut.json ends in the middle"),
        ("text.json", b"hello", "text.json is not valid JSON"),
        ("cut.zip", b"PK\3\4" + bytes(2000), "cut.zip is a damaged ZIP archive"),
        ("no.json", b"[1, 2]", "no.json is not an export of conversations"),
    ):
        (tmp_path / name).write_bytes(content)
        field.set_input_files(tmp_path / name)
        page.get_by_text(problem).wait_for()
    assert page.locator(".entry").count() == 0


@pytest.mark.alone
def test_a_large_import_leaves_the_page_alive(fake: Running, open_page: Open, tmp_path: Path) -> None:
    many = [
        of_chatgpt(number, f"Chat {number}", node("u", None, "user", "word " * 1500))
        for number in range(1500)
    ]
    (tmp_path / "conversations.json").write_text(json.dumps(many))
    page = open_page(fake)
    page.get_by_text("No conversations yet").wait_for()
    page.evaluate(
        """() => {
            window.longest = 0;
            let last = performance.now();
            setInterval(() => {
                const now = performance.now();
                window.longest = Math.max(window.longest, now - last);
                last = now;
            }, 5);
        }"""
    )
    page.get_by_label("File of conversations").set_input_files(tmp_path / "conversations.json")
    page.get_by_text("1500 imported.").wait_for(timeout=60_000)
    assert page.evaluate("window.longest") < 3000
