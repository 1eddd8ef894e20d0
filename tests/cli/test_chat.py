from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from chaski.cli.chat_help import PARAMETERS, WORDS
from chaski.cli.session import Session
from chaski.errors import OptionError
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cli.chatting import opened, options, said, talk
from tests.cli.terminals import terminal
from tests.tiny_llama import write_tiny_llama


def test_the_conversation_is_remembered(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, "hello", "and then?")
    first, second = session.history[1]["content"], session.history[3]["content"]
    assert capsys.readouterr().out == f"{first}\n{second}\n\n"
    again = session.model.chat(session.history[:3], temperature=0, num_predict=6)
    assert again.text == second


def test_without_history_each_message_stands_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(session, monkeypatch, "/set nohistory", "hello", "/set history", "again")
    assert said(session) == ["again"]


def test_clear_forgets(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(session, monkeypatch, "hello", "/clear", "again")
    assert said(session) == ["again"]


@pytest.mark.parametrize("word", ["/bye", "/exit"])
def test_leaving(session: Session, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    talk(session, monkeypatch, "", word, "never read")
    assert session.history == []


def test_messages_of_several_lines(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(session, monkeypatch, '"""first', "  second", 'third"""', '"""one line"""', 'say """ twice')
    assert said(session) == ["first\n  second\nthird", "one line", 'say """ twice']


def test_system_messages(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(session, monkeypatch, '/set system """be', 'brief"""')
    assert session.system == "be\nbrief"
    talk(session, monkeypatch, "/set system")
    assert session.system is None


def test_parameters(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "/set parameter seed 42",
        "/set parameter stop end fin",
        "/set parameter top_p 0.5",
        "/show parameters",
    ]
    talk(session, monkeypatch, *lines)
    assert session.options == {
        "temperature": 0,
        "num_predict": 6,
        "seed": 42,
        "stop": ["end", "fin"],
        "top_p": 0.5,
    }
    output = capsys.readouterr().out
    assert "Set parameter 'stop' to 'end fin'" in output
    assert "    seed           42\n" in output


def test_every_setting_is_confirmed(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    schema = tmp_path / "a schema.json"
    schema.write_text('{"type": "object"}')
    settings = WORDS["/set"]
    assert isinstance(settings, Mapping)
    lines = [f"/set {name}" for name in settings if name not in ("parameter", "system", "think")]
    talk(session, monkeypatch, *lines, "/set system be brief", "/set parameter seed -1")
    output = capsys.readouterr().out.splitlines()
    assert len(list(filter(None, output))) == len(lines) + 2
    assert session.options["seed"] is None
    talk(session, monkeypatch, f"/set format {tmp_path}/a\\ schema.json")
    assert session.options["format"] == {"type": "object"}
    assert "Answers follow the JSON schema." in capsys.readouterr().out
    talk(session, monkeypatch, "/set format json", "/set system", "/set noformat")
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["Answers are JSON.", "There is no system message.", "Answers are text."]


def test_every_option_is_in_the_help() -> None:
    assert {name for names in PARAMETERS.values() for name in names} == options()


def test_parameters_of_several_values(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("choice yes no", "stop_token_ids 1 2", "regex 4 2", "ignore_eos true", "adapter a=0.5 b")
    talk(session, monkeypatch, *(f"/set parameter {line}" for line in lines))
    wanted: dict[str, object] = {
        "choice": ["yes", "no"],
        "stop_token_ids": [1, 2],
        "regex": "4 2",
        "ignore_eos": True,
    }
    wanted["adapter"] = [("a", 0.5), ("b", 1.0)]
    assert wanted.items() <= session.options.items()
    with pytest.raises(OptionError, match="Modelfile with ADAPTER"):
        session.save("mine")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/fly", "unknown command '/fly'; type /? for help"),
        ("/quit", "unknown command '/quit'; did you mean /bye, which other programs call /quit?"),
        ("/hlep", "unknown command '/hlep'; did you mean /help?"),
        ("/set wings 3", "/set has no setting 'wings'; type /set for help"),
        ("/set temprature 0", "no setting 'temprature'; did you mean /set parameter temperature?"),
        ("/set nohistry", "/set has no setting 'nohistry'; did you mean /set nohistory?"),
        ("/set format [", "the format is no JSON: [: "),
        ("/? fly", "there is no help on 'fly'; the topics are set, parameters, show, shortcuts"),
        ("/set parameter num_ctx 0", "option num_ctx is 0; it must be a whole number of at least 1"),
        ("/set parameter num_gpu -2", "option num_gpu is -2; it must be a whole number of at least -1"),
        ("/set parameter num_predict -5", "option num_predict is -5; it must be an integer of at least -2"),
        ("/set parameter seed", "/set parameter needs a name and a value"),
        ("/set parameter seed many", "option seed is 'many'"),
        ("/set parameter wings 3", "option 'wings' is unknown; /? parameters lists all"),
        (
            "/set parameter max_tokens 3",
            "'max_tokens' is unknown; did you mean num_predict, which OpenAI's API calls max_tokens?",
        ),
        ("/set parameter n_ctx 99", "did you mean num_ctx, which llama.cpp calls n_ctx?"),
        ("/set format nosuch.json", "it must be json, a JSON schema, or the file of one: No such file"),
        ("/set format 3", "format is '3'; it must be json, a JSON schema, or the file of one"),
        ('/set format ["a"]', 'the format is a list, but a JSON schema is an object: ["a"]'),
        ("/show all", "/show has no topic 'all'; type /show for help"),
        ("/show sytem", "/show has no topic 'sytem'; did you mean system?"),
        ("x" * 400, "but the context holds 256"),
    ],
)
def test_mistakes_do_not_end_the_chat(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    talk(session, monkeypatch, line, "still here")
    assert message in capsys.readouterr().err
    assert said(session) == ["still here"]
    assert session.options == {"temperature": 0, "num_predict": 6}


def test_old_turns_leave_a_full_context(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, *["a message of some length"] * 12)
    output = capsys.readouterr()
    assert "tokens were left out." in output.err
    assert "Error" not in output.err
    assert len(said(session)) == 12


def test_what_can_be_shown(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, "/show info", "/show template", "/show system", "/?")
    output = capsys.readouterr().out
    assert "tiny.gguf" in output
    assert "message.role" in output
    assert "No system message is set." in output
    assert "/set NAME ..." in output


def test_help_fits_a_terminal(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, "/set", "/show", "/?", "/help shortcuts", "/? /set", "/? parameters")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    for text in ("Available to /set:", "Available to /show:", "Available commands:", "Available keys:"):
        assert text in lines
    assert lines.count("Available to /set:") == 2
    # The help lists all settings, and Tab completes them.
    settings, shown = WORDS["/set"], WORDS["/show"]
    assert isinstance(settings, Mapping)
    assert isinstance(shown, Mapping)
    for word in (*settings, *shown, *options()):
        assert any(word in line for line in lines)


def test_the_turns_that_a_model_begins_with_are_shown(
    own_store: None, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"role": "user", "content": "who are you?"}, {"role": "assistant", "content": "a llama"}]
    recipe = Recipe(sources=[tiny_llama], messages=messages)
    for _ in create(Store.default(), ModelName.parse("named"), recipe):
        pass
    session = opened(tiny_llama)
    talk(session, monkeypatch, "/load named")
    assert capsys.readouterr().out == ">>> who are you?\na llama\n\n\n"
    talk(session, monkeypatch)
    assert capsys.readouterr().out == ">>> who are you?\na llama\n\n\n"
    session.model.close()


def test_another_context(
    own_store: None, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is loaded again, and the conversation continues; a failed load changes nothing."""
    session = opened(tiny_llama)
    lines = (
        "hello",
        "/set parameter num_ctx 100",
        "and then?",
        "/set parameter num_ctx 1000000000",
        "/save mine",
    )
    talk(session, monkeypatch, *lines)
    assert (session.model.context, session.loading) == (100, {"num_ctx": 100})
    assert said(session) == ["hello", "and then?"]
    assert "memory" in capsys.readouterr().err
    assert find_model("mine").parameters == {"num_ctx": 100, "num_predict": 6, "temperature": 0}
    session.model.close()


def test_ctrl_c_at_the_prompt_is_not_the_end(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session, monkeypatch, KeyboardInterrupt, "hello")
    assert "Use Ctrl-D or /bye to leave." in capsys.readouterr().out
    assert said(session) == ["hello"]


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    """It uses a real terminal and a real signal during an answer of 100,000 tokens."""
    path = write_tiny_llama(tmp_path / "long.gguf", llama__context_length=200_000)
    arguments = ["run", str(path), "--temperature", "0", "--context", "150000"]
    with terminal("-m", "chaski", *arguments) as chat:
        chat.wait_for_prompt(1)
        chat.type("hello\r")
        chat.wait_for("hello\r\r\n")
        begun = len(chat.text) + 200
        chat.wait_until(lambda: len(chat.text) > begun)
        chat.process.send_signal(signal.SIGINT)
        chat.wait_for_prompt(2)
        chat.type("/bye\r")
        assert chat.wait_for_end() == 0
