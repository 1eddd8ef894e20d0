"""The commands, options, variables, pages, routes and chat commands in the guide's answers exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click

from chaski.cli.main import chaski_command

ROOT = Path(__file__).parents[2]


def topics() -> dict[str, dict[str, str]]:
    paths = sorted((ROOT / "tools/guide/topics").glob("*.toml"))
    return {name: topic for path in paths for name, topic in tomllib.loads(path.read_text()).items()}


TOPICS = topics()
CODES = [(name, code) for name, topic in TOPICS.items() for code in re.findall(r"`([^`]+)`", topic["answer"])]
FOREIGN = {
    "aider",
    "apt",
    "caddy",
    "chmod",
    "claude",
    "cn",
    "codex",
    "curl",
    "docker",
    "ffmpeg",
    "git",
    "hf",
    "llama-cli",
    "llama-server",
    "loginctl",
    "ls",
    "make",
    "mitmproxy",
    "mkdir",
    "nice",
    "numactl",
    "opencode",
    "openssl",
    "pandoc",
    "pdftotext",
    "pip",
    "python",
    "python3",
    "scp",
    "ssh",
    "sudo",
    "systemctl",
    "systemd-run",
    "taskset",
    "uname",
}
"""Third-party programs, whose options are not chaski's."""

IMAGE = "chaski"
"""The container image has the name of the program."""


def options_of(command: click.Command) -> set[str]:
    """Return all options of a command and its subcommands."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return own.union({"--help"}, *map(options_of, below))


def options_of_commands() -> dict[str, set[str]]:
    assert isinstance(chaski_command, click.Group)
    context = click.Context(chaski_command)
    found = {}
    for name in chaski_command.list_commands(context):
        command = chaski_command.get_command(context, name)
        assert command is not None
        found[name] = options_of(command)
    return found


OPTIONS = options_of_commands()
ANY_OPTION = set().union(*OPTIONS.values()) | {"--version"}


def named(pattern: str) -> list[tuple[str, str]]:
    """Yield topic and group 1 for each match of `pattern` in code of an answer."""
    return [(name, match[1]) for name, code in CODES for match in re.finditer(pattern, code)]


def written_options(code: str) -> list[str]:
    return re.findall(r"(?<!\S)--?[a-z][a-z-]*", re.sub(r'"[^"]*"', "", code))


def test_commands_and_their_options() -> None:
    calls = [call for call in named(r"\bchaski ([a-z]+\b[^|>]*)") if call[1] != IMAGE]
    assert len(calls) > 50
    for topic, call in calls:
        command = call.split()[0]
        assert command in OPTIONS, f"[{topic}] chaski {command}"
        for option in written_options(call):
            assert option in OPTIONS[command], f"[{topic}] chaski {command} {option}"


def test_options_alone() -> None:
    for topic, code in CODES:
        words = code.split()
        if words[0].strip("'") not in FOREIGN and "chaski-" not in code:
            for option in written_options(code):
                assert option in ANY_OPTION, f"[{topic}] {option}"


def test_environment_variables() -> None:
    page = (ROOT / "docs/environment.md").read_text()
    variables = named(r"\b((?:CHASKI|OLLAMA)_[A-Z_]+)")
    assert len(variables) > 20
    for topic, variable in variables:
        assert f"`{variable}`" in page, f"[{topic}] {variable}"


def test_pages_and_files() -> None:
    for name, table in TOPICS.items():
        assert (ROOT / table["page"]).is_file(), f"[{name}] {table['page']}"
    for topic, path in named(r"^((?:docs|chaski|tools|native|tests|benchmarks|deploy)/[\w./-]*)"):
        assert (ROOT / path).exists(), f"[{topic}] {path}"
    for topic, path in named(r"^([A-Z]+(?:\.md)?)$"):
        assert not path.endswith(".md") or (ROOT / path).exists(), f"[{topic}] {path}"


def test_routes() -> None:
    documents = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for topic, route in named(r"(/(?:v1|api)/[\w/-]+)"):
        assert route in documents or route.rsplit("/", 1)[0] in documents, f"[{topic}] {route}"


def test_answers_are_plain_and_short() -> None:
    for name, topic in TOPICS.items():
        assert topic["answer"].isascii(), name
        assert len(topic["answer"]) < 250, name


def test_what_removes_says_what_stays() -> None:
    """Such an answer may be given to another question, so it names both what is removed and what is kept."""
    for name, topic in TOPICS.items():
        if re.search(r"pip uninstall|chaski rm|--empty|chaski prune", topic["answer"]):
            assert re.search(r"stay|no model|delete", topic["answer"]) or name.endswith("command-list"), name


def test_no_question_has_two_answers() -> None:
    first: dict[str, str] = {}
    for name, topic in TOPICS.items():
        for wording in topic["wordings"].splitlines():
            key = wording.lower().rstrip("?.! ")
            assert not key or first.setdefault(key, name) == name, f"{wording}: {first[key]} and {name}"


def test_measured_wordings_are_not_trained() -> None:
    trained = {w.lower().rstrip("?.! ") for topic in TOPICS.values() for w in topic["wordings"].splitlines()}
    for name, topic in TOPICS.items():
        for wording in (topic["tuning"], *topic["held_out"].splitlines()):
            assert wording.lower().rstrip("?.! ") not in trained, f"[{name}] {wording}"
