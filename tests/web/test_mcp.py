"""Tools of MCP servers: listed, confirmed each time, and run; errors are shown."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.image.pictures import png
from tests.server.fake_worker import Script
from tests.server.running import Running, wait_until
from tests.web.conftest import Open, ask, ended, picture
from tests.web.mcp_server import McpServer, tool
from tests.web.test_chat import asked, prompt

pytestmark = pytest.mark.slow

RUNS = "window.ran = 1"


def calls(*names: str, **values: Any) -> tuple[str, ...]:
    return tuple(
        f"<tool_call>{json.dumps({'name': name, 'arguments': values})}</tool_call>" for name in names
    )


def add(page: Any, url: str, header: str = "") -> Any:
    """Add an MCP server in the settings, and return its entry."""
    if not page.get_by_label("Settings of this conversation").is_visible():
        page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Address").fill(url)
    if header:
        page.get_by_label("Authorization header").fill(header)
    page.get_by_role("button", name="the server").click()
    return page.get_by_role("group", name=url)


def close(page: Any) -> None:
    page.get_by_role("button", name="Close the settings").click()


@pytest.mark.parametrize("by_event", [False, True], ids=["json", "events"])
def test_a_tool_runs_when_the_user_says_so(
    allowing: Running, weather: McpServer, script: Script, open_page: Open, by_event: bool
) -> None:
    weather.by_event = by_event
    weather.pages.append([tool("second", "Is on the second page.")])
    page = open_page(allowing, reaches=(weather.origin,))
    entry = add(page, weather.url)
    entry.get_by_text("2 tools").click()
    assert "Tells the weather" in entry.inner_text()
    assert "second page" in entry.inner_text()
    picture(page, "mcp-settings")
    close(page)
    script.pieces = calls("weather", city="Cusco")
    ask(page, "How is the weather?")
    question = page.get_by_role("region", name="Call of weather")
    assert weather.url in question.inner_text()
    assert "Cusco" in question.inner_text()
    assert '"name": "weather"' in prompt(script)
    assert '"name": "second"' in prompt(script)
    picture(page, "mcp")
    page.reload()
    question.wait_for()
    assert weather.asked("tools/call") == []
    script.pieces = ("Take a hat.",)
    question.get_by_role("button", name="Run once").click()
    page.get_by_text("Take a hat.").wait_for()
    assert weather.asked("tools/call") == [{"name": "weather", "arguments": {"city": "Cusco"}}]
    assert "[tool]It is sunny in Cusco." in prompt(script)
    page.get_by_text("Result of weather").click()
    page.get_by_text("It is sunny in Cusco.").wait_for()
    if by_event:
        replies = [body for _, _, body in weather.seen if body and "method" not in body]
        assert {"jsonrpc": "2.0", "id": 7, "result": {}} in replies
        assert {each["error"]["code"] for each in replies if each["id"] == 8} == {-32601}
    page.goto("about:blank")
    wait_until(lambda: not weather.sessions)


def test_a_refused_call_does_not_run(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    script.pieces = calls("weather", "weather", city="Cusco")
    ask(page, "How is the weather?")
    page.get_by_text("1 more to decide").wait_for()
    page.get_by_role("button", name="Refuse").click()
    page.get_by_text("1 more to decide").wait_for(state="detached")
    script.pieces = ("As you wish.",)
    page.get_by_role("button", name="Run once").click()
    page.get_by_text("As you wish.").wait_for()
    assert len(weather.asked("tools/call")) == 1
    assert "[tool]The user refused this call.[tool]It is sunny in Cusco." in prompt(script)


def test_own_tools_and_those_of_servers(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    """Two tools of one name get two names for the model; tools without a server are answered by hand."""
    page = open_page(allowing, reaches=(weather.origin,))
    page.get_by_role("button", name="Settings", exact=True).click()
    own = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page.get_by_label("Tools that the model may call").fill(json.dumps([own]))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    script.pieces = calls("weather", "weather_2", city="Lima")
    ask(page, "x")
    page.get_by_label("Result of weather").fill("by hand")
    page.get_by_role("button", name="Return to the model").click()
    script.pieces = ("done",)
    page.get_by_role("button", name="Run once").click()
    page.get_by_text("done", exact=True).wait_for()
    assert "[tool]by hand[tool]It is sunny in Cusco." in prompt(script)
    assert weather.asked("tools/call") == [{"name": "weather", "arguments": {"city": "Lima"}}]


def test_a_call_is_stopped(allowing: Running, weather: McpServer, script: Script, open_page: Open) -> None:
    weather.by_event, weather.hold = True, threading.Event()
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    script.pieces = calls("weather", city="Cusco")
    ask(page, "x")
    page.get_by_role("button", name="Run once").click()
    wait_until(lambda: weather.asked("tools/call"))
    page.get_by_role("region", name="Call of weather").get_by_role("button", name="Stop").click()
    page.get_by_text("What the tool did until then is not known.").wait_for()
    wait_until(lambda: weather.asked("notifications/cancelled"))
    weather.hold.set()


def test_a_question_is_stopped_while_tools_are_asked_for(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    waiting: list[Any] = []
    page.route(weather.url, lambda route: waiting.append(route))
    ask(page, "x")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.unroute_all(behavior="ignoreErrors")
    assert script.asked == []


def test_a_forgotten_session_begins_again(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    weather.sessions.clear()
    ask(page, "x")
    ended(page)
    assert '"name": "weather"' in prompt(script)
    assert len(weather.asked("initialize")) == 2


def test_the_header_stays_in_this_browser(
    allowing: Running, weather: McpServer, script: Script, open_page: Open, tmp_path: Path
) -> None:
    weather.key = "Bearer secret"
    page = open_page(allowing, reaches=(weather.origin,))
    entry = add(page, weather.url + "?also=secret")
    entry.get_by_text("requires a valid Authorization header").wait_for()
    entry.get_by_role("button", name="Change the header").click()
    page.get_by_label("Authorization header").fill(weather.key)
    page.get_by_label("Keep the header in this browser").check()
    page.get_by_role("button", name="Change the server").click()
    entry.get_by_text("1 tool").wait_for()
    assert page.evaluate("[sessionStorage['chaski.mcp'] ?? '', localStorage['chaski.mcp']]") == [
        "",
        json.dumps({weather.url + "?also=secret": weather.key}, separators=(",", ":")),
    ]
    close(page)
    script.pieces = calls("weather", city="Cusco")
    ask(page, "x")
    page.get_by_role("button", name="Run once").wait_for()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export", exact=True).click()
    waiting.value.save_as(tmp_path / "all.json")
    assert weather.url in (tmp_path / "all.json").read_text()
    assert "secret" not in (tmp_path / "all.json").read_text()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name=f"Remove {weather.url}").click()
    entry.wait_for(state="detached")
    assert page.evaluate("localStorage['chaski.mcp'] ?? null") is None


def test_images_of_tools(allowing: Running, weather: McpServer, script: Script, open_page: Open) -> None:
    image = base64.b64encode(png(40, 40)).decode()
    weather.results["weather"] = {
        "content": [
            {"type": "text", "text": "A picture:"},
            {"type": "image", "data": image, "mimeType": "image/png"},
            {"type": "image", "data": "<svg onload=alert(1)>", "mimeType": "image/svg+xml"},
            {"type": "audio", "data": "x", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "x:y", "text": "embedded"}},
        ]
    }
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    script.pieces = calls("weather", city="Cusco")
    ask(page, "x")
    page.get_by_role("button", name="Run once").wait_for()
    script.pieces = ("I see.",)
    page.get_by_role("button", name="Run once").click()
    page.get_by_text("I see.").wait_for()
    shown = page.get_by_alt_text("Image 1 of the result")
    assert shown.evaluate("image => image.naturalWidth") == 40
    page.get_by_text("thinker:latest sees no images").wait_for()
    assert page.locator(".returned-images img").count() == 1
    for text in (
        "A picture:",
        "image/svg+xml",
        "audio/wav",
        "embedded",
        "returned 1 image(s), which this model",
    ):
        assert text in prompt(script)
    picture(page, "mcp-image")
    # A vision model gets the image.
    page.route("**/api/show", lambda route: route.fulfill(json={"capabilities": ["vision", "tools"]}))
    page.reload()
    with page.expect_request("**/api/chat") as request:
        page.get_by_role("button", name="Answer again", exact=True).last.click()
    assert request.value.post_data_json["messages"][-1]["images"] == [image]


def test_hostile_tools(allowing: Running, weather: McpServer, script: Script, open_page: Open) -> None:
    markup = f"<img src=x onerror='{RUNS}'>"
    name = f"{markup}\u202etxt.x"
    weather.pages = [[tool(name, f"{markup} <script>{RUNS}</script> \u200b")]]
    weather.results[name] = {"content": [{"type": "text", "text": markup}], "isError": True}
    page = open_page(allowing, reaches=(weather.origin,))
    entry = add(page, weather.url)
    entry.get_by_text("1 tool").click()
    assert markup in entry.inner_text()
    assert "\\u202etxt" in entry.inner_text()
    close(page)
    ask(page, "x")
    ended(page)
    (offered,) = json.loads(prompt(script).partition(" <tool_call>")[0])
    called = offered["function"]["name"]
    assert called.replace("_", "").isalnum()
    script.pieces = calls(called, x=f"{markup}\u202e")
    ask(page, "y")
    question = page.locator(".call-question")
    assert markup in question.inner_text()
    assert "\\u202e" in question.inner_text()
    picture(page, "mcp-hostile")
    script.pieces = ("done",)
    question.get_by_role("button", name="Run once").click()
    page.get_by_text("done", exact=True).wait_for()
    assert f"The tool failed.\n{markup}" in prompt(script)
    page.get_by_text(f"Result of {called}").click()
    assert page.evaluate("window.ran") is None
    assert page.locator("main img").count() == 0


def test_a_failed_call_is_said_and_returned(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    weather.results["weather"] = "no such city"
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    script.pieces = calls("weather", city="Atlantis")
    ask(page, "x")
    page.get_by_role("button", name="Run once").click()
    page.get_by_text(f"{weather.url} refused the request: no such city (-32602)").wait_for()
    script.pieces = ("A pity.",)
    page.get_by_role("button", name="Return the error").click()
    page.get_by_text("A pity.").wait_for()
    assert "[tool]The call failed: " in prompt(script)
    assert len(weather.asked("tools/call")) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"origins": ()}, "does not let this page read its answers (CORS)"),
        ({"exposes": False}, "must expose the header Mcp-Session-Id"),
        ({"version": "1999-01-01"}, "uses revision 1999-01-01 of MCP"),
        ({"key": "Bearer x"}, "requires a valid Authorization header"),
        ({"redirect": "https://example.org/mcp"}, "or redirects elsewhere"),
        ({"pages": [[{"name": "x"}]]}, "lists a tool without a name or a schema"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_goes_wrong_is_said(
    allowing: Running, weather: McpServer, open_page: Open, changes: dict[str, Any], said: str
) -> None:
    for name, value in changes.items():
        setattr(weather, name, value)
    page = open_page(allowing, reaches=(weather.origin, "https://example.org"))
    if "redirect" in changes:
        page.route("https://example.org/**", lambda route: route.abort())
    add(page, weather.url).get_by_text(said).wait_for()


def test_addresses_that_are_not_asked(
    allowing: Running, weather: McpServer, fake: Running, script: Script, open_page: Open
) -> None:
    page = open_page(allowing, reaches=(weather.origin,))
    for address, said in {
        "nonsense": "nonsense is not an address",
        "file:///etc/passwd": "is not an address",
        "http://user:password@127.0.0.1/": "remove the password from the address",
        "https://elsewhere.example/mcp": f"CHASKI_MCP_SERVERS={weather.origin},https://elsewhere.example",
        allowing.url + "/mcp": "has not allowed it",
    }.items():
        add(page, address)
        page.get_by_text(said).wait_for()
    page.get_by_label("Authorization header").fill("Bearer \u2026")
    page.get_by_label("Address").fill(weather.url)
    page.get_by_role("button", name="Add the server").click()
    page.get_by_text("This is not a valid header").wait_for()
    assert weather.seen == []
    add(page, weather.origin + "/other", "Bearer x").get_by_text("no MCP server at this path").wait_for()
    other = open_page(fake)
    other.get_by_role("button", name="Settings", exact=True).click()
    other.get_by_text("This page may not reach any").wait_for()


def test_a_server_that_is_gone(
    allowing: Running, weather: McpServer, script: Script, open_page: Open
) -> None:
    """The question reports it, and the model is not asked without its tools."""
    page = open_page(allowing, reaches=(weather.origin,))
    add(page, weather.url).get_by_text("1 tool").wait_for()
    close(page)
    page.route(weather.url, lambda route: route.abort())
    ask(page, "x")
    page.get_by_text(f"{weather.url} cannot be reached. Start this MCP server").wait_for()
    assert script.asked == []
    page.unroute(weather.url)
    page.get_by_role("button", name="Answer again", exact=True).click()
    ended(page)
    assert asked(script)


def test_imported_conversations_run_nothing(
    allowing: Running, weather: McpServer, open_page: Open, tmp_path: Path
) -> None:
    """A call for a server outside the settings must be answered by hand."""
    call: Any = {"function": {"name": "weather", "arguments": {}}}
    question: Any = {"id": "q", "parent": None, "role": "user", "content": "x", "created": 1}
    answer = {"id": "a", "parent": "q", "role": "assistant", "content": "", "created": 2, "calls": [call]}
    remote = {"weather": {"server": weather.url, "tool": "weather"}}
    messages = {"q": question, "a": answer | {"remote": remote}}
    whole: Any = {"id": "c", "title": "c", "created": 1, "updated": 1, "model": "thinker:latest", "leaf": "a"}
    kinds: Any = {
        "bad": {"settings": {"mcp": [1]}, "messages": messages},
        "worse": {"settings": {}, "messages": messages | {"a": answer | {"remote": {"weather": None}}}},
        "good": {"settings": {}, "messages": messages},
    }
    for name, changes in kinds.items():
        text = json.dumps({"format": "chaski-conversations-1", "conversations": [whole | changes]})
        (tmp_path / f"{name}.json").write_text(text)
    page = open_page(allowing)
    field = page.get_by_label("File of conversations")
    for name in ("bad", "worse"):
        field.set_input_files(tmp_path / f"{name}.json")
        page.get_by_text("is incomplete").wait_for()
    field.set_input_files(tmp_path / "good.json")
    page.get_by_role("link", name="c", exact=True).click()
    page.get_by_label("Result of weather").wait_for()
    assert page.get_by_role("button", name="Run once").count() == 0
    assert weather.seen == []
