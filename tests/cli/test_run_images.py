"""`chaski run` with paths of images in the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.chat.options import GenerateOptions
from chaski.cli.chat import chat
from chaski.cli.main import chaski_command
from chaski.cli.session import Session
from chaski.errors import ImageError
from chaski.image import MAX_BYTES
from tests.image.pictures import png
from tests.tiny_vision import DATA

MODEL = DATA / "mistral3.gguf"
ONE = png(20, 33)
OPTIONS: GenerateOptions = {"temperature": 0, "num_predict": 8}
GREEDY = ("--temperature", "0", "--num-predict", "8")


@pytest.fixture(scope="module")
def model() -> Iterator[chaski.LLM]:
    with chaski.load(MODEL, context=256) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "two words.png").write_bytes(ONE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, ["run", *arguments, *GREEDY])


def expected(model: chaski.LLM, content: str, *images: bytes) -> str:
    return model.chat([{"role": "user", "content": content, "images": list(images)}], **OPTIONS).text


def test_one_prompt(model: chaski.LLM) -> None:
    result = run(str(MODEL), "what is in", "'./two words.png'", "?")
    assert result.stderr == "Added image 'two words.png'\n"
    assert result.stdout == expected(model, "what is in  ?", ONE) + "\n"
    assert result.stdout != expected(model, "what is in  ?") + "\n"


def test_as_it_is(model: chaski.LLM) -> None:
    result = run(str(MODEL), "it is ./two words.png", "--raw")
    assert result.stdout == model.generate("it is", [ONE], **OPTIONS).text + "\n"


def test_chat(
    model: chaski.LLM, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message may begin with a path, which looks like a command; images stay in the conversation."""
    typed = iter([f"{here}/two\\ words.png what is it?", "and now?", "/xyzzy", "/no/file.png hm"])

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    session = Session(model, dict(OPTIONS))
    chat(session)
    output = capsys.readouterr()
    first, second = (turn["content"] for turn in session.history if turn["role"] == "assistant")
    assert first == expected(model, "what is it?", ONE)
    assert session.history[0]["images"] == [ONE]
    assert model.chat(session.history[:3], **OPTIONS).text == second
    assert output.err.splitlines() == [
        f"Added image '{here}/two words.png'",
        "Error: unknown command '/xyzzy'; type /? for help",
        "Error: unknown command '/no/file.png'; type /? for help",
    ]


def test_paths_of_nothing_stay_text(model: chaski.LLM) -> None:
    result = run(str(MODEL), "is ./dog.png a dog?")
    assert result.stderr == "Note: there is no file './dog.png'; it stays text\n"
    assert result.stdout == expected(model, "is ./dog.png a dog?") + "\n"


def test_a_model_that_does_not_see(tiny_llama: Path) -> None:
    result = run(str(tiny_llama), "see './two words.png'")
    assert result.stderr == "Note: the model cannot read images; 'two words.png' stays text\n"
    with chaski.load(tiny_llama) as text_only:
        assert result.stdout == expected(text_only, "see './two words.png'") + "\n"


def test_files_that_are_no_images(model: chaski.LLM, here: Path) -> None:
    (here / "text.png").write_text("hello")
    (here / "cut.png").write_bytes(ONE[:300])
    result = run(str(MODEL), "see ./text.png")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: text.png: not an image: the data begins with 68 65")
    assert "the PNG image cannot be read" in run(str(MODEL), "see ./cut.png").stderr
    with (here / "huge.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ImageError, match=f"has {MAX_BYTES + 1} bytes; at most {MAX_BYTES}"):
        Session(model, {}).answer("see ./huge.png")
