from __future__ import annotations

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command


def said(*words: str) -> str:
    """Return the error of a command as one line."""
    done = CliRunner().invoke(chaski_command, words)
    assert done.exit_code == 2
    return " ".join(done.output.partition("Error: ")[2].split())


@pytest.mark.parametrize(
    ("word", "question"),
    [
        ("lst", "Did you mean list?"),
        ("serv", "Did you mean serve or service?"),
        ("chat", "Did you mean run, which vLLM calls chat?"),
        ("llama-server", "Did you mean serve, which llama.cpp calls llama-server?"),
        ("delete", "Did you mean rm, which other programs call delete?"),
        ("guide:latest", "Did you mean chaski run guide:latest?"),
        ("xyzzy", ""),
    ],
)
def test_an_unknown_command_proposes_one(word: str, question: str) -> None:
    assert said(word) == f"No such command '{word}'. {question}".rstrip()


def test_commands_within_a_command_are_proposed() -> None:
    assert said("service", "instal").endswith("Did you mean install?")
    assert said("cluster", "stats").endswith("Did you mean status?")


@pytest.mark.parametrize(
    ("words", "option", "question"),
    [
        ("run guide --num-predit 5", "--num-predit", "--num-predict"),
        ("run guide --max-tokens=5", "--max-tokens", "--num-predict, which OpenAI's API calls --max-tokens"),
        ("run guide -n 5", "-n", "--num-predict, which llama.cpp calls -n"),
        ("run guide -n5", "-n", "--num-predict, which llama.cpp calls -n"),
        ("run guide -c 4096", "-c", "--context, which llama.cpp calls -c"),
        ("run guide --num-ctx 4096", "--num-ctx", "--context"),
        ("run guide -ngl 99 hi", "-ngl", "--num-gpu, which llama.cpp calls -ngl"),
        ("run guide --temp 0", "--temp", "--temperature, which llama.cpp calls --temp"),
        ("run -m guide", "-m", "the argument MODEL, which llama.cpp calls -m"),
        ("run --model guide", "--model", "the argument MODEL"),
        ("serve --port 80", "--port", "--host, which llama.cpp calls --port"),
        ("shard --port 80", "--port", "--listen, which llama.cpp calls --port"),
        (
            "serve --max-model-len 8192",
            "--max-model-len",
            "the environment variable OLLAMA_CONTEXT_LENGTH, which vLLM calls --max-model-len",
        ),
        (
            "run guide --repeat-penalty 1",
            "--repeat-penalty",
            "PARAMETER repeat_penalty in a Modelfile, or /set parameter repeat_penalty in a chat",
        ),
        ("bench guide -n 5", "-n", "--generate, which llama-bench calls -n"),
    ],
)
def test_an_unknown_option_proposes_one(words: str, option: str, question: str) -> None:
    assert said(*words.split()) == f"No such option '{option}'. Did you mean {question}?"


def test_an_option_without_a_near_one_proposes_nothing() -> None:
    assert said("list", "--xyzzy") == "No such option '--xyzzy'."


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("run guide -i", "It is not needed: without a prompt, chaski run MODEL starts a chat."),
        ("run guide -cnv", "It is not needed: without a prompt, chaski run MODEL starts a chat."),
        ("run guide --jinja", "It is not needed: the model's own chat template is always used."),
        ("run guide --image cat.png", "Write the path of the image into the prompt, as in ./cat.png."),
        ("run guide -f prompt.txt", "Pipe the file into the command: chaski run MODEL < FILE."),
        (
            "serve -m guide",
            "It is not needed: the server loads each model when a request names it; chaski list",
        ),
        ("signin", "No account is needed; chaski pull --help"),
        ("launch", "Start chaski serve, and set its address in the agent or editor."),
    ],
)
def test_what_has_no_counterpart_is_explained(words: str, instead: str) -> None:
    assert instead in said(*words.split())


def test_an_option_before_the_command_is_explained() -> None:
    assert said("-m", "guide").startswith("No such option '-m'. Options follow a command, as in: chaski run")


def test_help_and_version_are_commands() -> None:
    run = CliRunner().invoke
    assert run(chaski_command, ["version"]).output == f"chaski version {chaski.__version__}\n"
    assert run(chaski_command, ["help"]).output == run(chaski_command, ["--help"]).output
    assert run(chaski_command, ["help", "run"]).output == run(chaski_command, ["run", "--help"]).output
    inner = run(chaski_command, ["service", "install", "--help"]).output
    assert run(chaski_command, ["help", "service", "install"]).output == inner
    assert said("help", "rnu") == "No such command 'rnu'. Did you mean run?"
    assert said("help", "run", "more") == "chaski run has no commands."
