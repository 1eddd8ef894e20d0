"""`/tools`, `/cache` and `/stats` in chats, with a local model and with a server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.events import Done
from chaski.cli.chat_figures import Answered, stats_text
from chaski.cli.remote_model import RemoteModel
from chaski.cli.session import Session
from chaski.cli.tools import read_tools
from chaski.errors import OptionError
from chaski.names import ModelName
from chaski.remote import running_server
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cli.chatting import talk
from tests.cli.terminals import terminal
from tests.server.conftest import SOMEWHERE
from tests.server.running import running
from tests.speaking_llama import write_speaking_llama

ASKED, SUNNY = "What is the weather?", "sunny in Cusco"
SAYINGS = {
    ASKED: [
        *("Wait. ", "<tool_call>", '{"name": "weather", ', '"arguments": {"city": "Cusco\\u001b"}}'),
        "</tool_call>",
    ],
    SUNNY: ["It is ", "fine."],
    "call.": ["As you ", "wish."],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "day": {}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"name": "weather", "description": "How it is\x1b[31m", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaking_llama(tmp_path_factory.mktemp("speaking") / "speaking.gguf", SAYINGS)


@pytest.fixture(scope="module", params=["here", "server"])
def session(
    request: pytest.FixtureRequest, speaker: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    options = {"temperature": 0, "num_predict": 60}
    if request.param == "here":
        with chaski.load(speaker, threads=1) as model:
            yield Session(model, options, name=str(speaker))
        return
    folder = tmp_path_factory.mktemp("store")
    for _ in create(Store(folder), ModelName.parse("speaker"), Recipe(sources=[speaker])):
        pass
    with running(Settings(address=SOMEWHERE), folder) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_HOST", f"127.0.0.1:{found.port}")
        yield Session(RemoteModel(running_server(), "speaker"), options, name="speaker")


@pytest.fixture
def tools(session: Session, tmp_path: Path) -> Path:
    session.clear()
    session.tools.clear()
    session.answers.clear()
    file = tmp_path / "my tools.json"
    file.write_text(json.dumps(TOOLS))
    return file


def test_the_user_gives_the_results_of_calls(
    session: Session, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, f"/tools load {str(tools).replace(' ', chr(92) + ' ')}", ASKED, SUNNY)
    output = capsys.readouterr()
    assert "weather(city, [day])    How it is\\x1b[31m" in output.out
    assert 'Wait.\nThe model calls weather with {"city": "Cusco\\u001b"}\n' in output.out
    assert "It is fine." in output.out
    assert [turn["role"] for turn in session.history] == ["user", "assistant", "tool", "assistant"]
    (call,) = session.history[1]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {"city": "Cusco\x1b"}}
    assert session.history[2] == {"role": "tool", "tool_name": "weather", "content": SUNNY}


def test_a_command_gives_the_result_and_gets_the_arguments_as_input_only(
    session: Session, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.tools = read_tools(tools)
    talk(session, monkeypatch, ASKED, f"!cat; echo '{SUNNY}'")
    assert session.history[2]["content"] == f'{{"city": "Cusco\\u001b"}}{SUNNY}'
    assert session.history[3]["content"] == "It is fine."
    session.clear()
    talk(session, monkeypatch, ASKED, "!echo no; exit 3")
    assert session.history[2]["content"] == "no\n(exit status 3)"


@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
def test_calls_without_a_result(
    session: Session, tools: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    session.tools = read_tools(tools)
    talk(session, monkeypatch, ASKED, "")
    assert session.history[2]["content"] == "The user refused this call."
    session.clear()
    talk(session, monkeypatch, ASKED, end)
    assert session.history == [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "Wait."},
    ]


def test_a_model_that_cannot_call_tools(
    tiny_llama: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chaski.load(tiny_llama, threads=1) as model:
        tiny = Session(model, {}, name="tiny")
        talk(tiny, monkeypatch, f"/tools load {tools}")
    assert 'Error: "tiny" cannot call tools: its template does not support them' in capsys.readouterr().err
    assert tiny.tools == []


def test_tools_are_listed_and_cleared(
    session: Session, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("/tools", f"/tools load {tools}", f"/tools load {tools}", "/tools", "/tools clear", "/tools fly")
    talk(session, monkeypatch, *lines)
    output = capsys.readouterr()
    assert output.out.count("weather(city, [day])") == 3
    assert output.out.count("The model has no tools.") == 2
    assert "use /tools load FILE or /tools clear" in output.err
    assert session.tools == []


def test_figures(
    session: Session, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, "/stats", SUNNY, SUNNY, "/stats", "/cache", "/clear", "/cache")
    output = capsys.readouterr().out
    assert output.startswith("There is no answer yet.\n")
    table, _, cache = output.partition("  Tokens, ")[2].partition("  Conversation\n")
    head, first, second, total = (line.split() for line in table.splitlines()[1:5])
    assert head == ["prompt", "cached", "rate", "first", "answer", "rate"]
    done = [each.done for each in session.answers]
    assert [row[:2] for row in (first, second)] == [
        [str(place), str(each.prompt_tokens)] for place, each in enumerate(done, 1)
    ]
    assert int(second[2]) == done[1].cached_tokens > 0
    assert total[0] == "all"
    assert int(total[1]) == sum(each.prompt_tokens for each in done)
    held = done[1].prompt_tokens + done[1].generated_tokens
    assert f"    tokens                        {held}\n" in cache
    assert f"1024, {1024 - held} left" in cache
    assert f"{done[1].cached_tokens} of {done[1].prompt_tokens}\n" in cache
    assert cache.count("    in memory ") == 2  # the prefix cache stays
    assert "Conversation" not in cache  # cleared


def test_what_was_proposed_is_told() -> None:
    done = Done(
        reason="stop",
        prompt_tokens=100,
        cached_tokens=50,
        generated_tokens=11,
        dropped_tokens=0,
        proposed_tokens=9,
        accepted_tokens=7,
        load_seconds=0,
        prefill_seconds=2,
        decode_seconds=4,
    )
    lines = stats_text([Answered(done, 2.25)] * 12).splitlines()
    assert len(lines) == 13
    assert lines[2].split() == ["3", "100", "50", "25", "2.25s", "11", "2.5", "7", "of", "9"]
    assert lines[-1].split() == ["all", "1200", "600", "25", "2.25s", "132", "2.5", "84", "of", "108"]
    assert max(map(len, lines[1:])) < 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a list of tools"),
        ('{"tools": 3}', "must be a list of tools"),
        ("[3]", r"tools\[0\] must be an object of type 'function'"),
        ('[{"type": "web"}]', r"tools\[0\] must be an object of type 'function'"),
        ('[{"function": {"name": "a"}}, {"function": {}}]', r"tools\[1\] has no name"),
        ('[{"name": "a", "parameters": []}]', "'parameters' must be the JSON schema"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_none_of_tools(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "tools.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_tools(file)


def test_tools_may_be_functions_alone(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"tools": [{"name": "now"}]}))
    function = {"name": "now", "description": "", "parameters": {"type": "object"}}
    assert read_tools(file) == [{"type": "function", "function": function}]


def test_on_a_terminal(speaker: Path, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS))
    arguments = ("run", str(speaker), "--temperature", "0", "--num-predict", "60")
    with terminal("-m", "chaski", *arguments, HOME=str(tmp_path), CHASKI_THREADS="1") as chat:
        chat.wait_for_prompt(1)
        chat.type(f"/tools load {tmp_path}/to\t\r")
        chat.wait_for("weather(city, [day])")
        chat.type(f"{ASKED}\r")
        chat.wait_for("result>")
        chat.type(f"{SUNNY}\r")
        chat.wait_for("It is fine.")
        chat.type("/stats\r")
        chat.wait_for("all ")
        chat.type("/bye\r")
        assert chat.wait_for_end() == 0
        assert b"\x1b[31m" not in chat.seen
    assert SUNNY not in (tmp_path / ".ollama" / "history").read_text()
