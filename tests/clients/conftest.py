"""A server with a model that writes set texts, and one that embeds, for third-party programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.speaking_llama import write_speaking_llama
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).parents[2]
CLIENTS = Path(os.environ.get("CHASKI_CLIENTS", ROOT / "build/clients"))
"""The folder of install.sh."""

Run = Callable[..., str]

# The text of the user or tool comes last, whatever a program puts around it: the last word of a prompt
# determines the model's text.
_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% if tools %}<tool_call>{% endif %}"
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content | trim }}"
    "{% endfor %}"
)


def call(name: str, **arguments: object) -> str:
    """Return the text with which the model calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def codex(url: str, model: str, prompt: str) -> list[str | Path]:
    """Return the command that lets Codex answer a prompt with a server's model in the current folder."""
    provider = f'{{name="chaski",base_url="{url}/v1",wire_api="responses"}}'
    options = ["-c", 'model_provider="chaski"', "-c", f"model_providers.chaski={provider}", "-m", model]
    # Tests may run in a sandbox, where Codex cannot create another one.
    free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [CLIENTS / "node_modules/.bin/codex", "exec", *free, *options, prompt]


SAYINGS = {
    "hello": ["Good ", "morning."],
    "What is the weather?": [call("weather", city="Cusco")],
    "sunny": ["It is ", "fine."],
    "Which city?": ['{"city":', '"Lima"', "}"],
    # Each agent has its own name for running a command.
    "Claude, read the note!": [call("Bash", command="cat note.txt", description="Read the note")],
    "Codex, read the note!": [call("exec_command", cmd="cat note.txt")],
    "opencode, read the note!": [call("bash", command="cat note.txt", description="Read the note")],
    "Continue, read the note!": [call("Bash", command="cat ./note.txt")],
    # Aider has no tools. It ends its prompts with this sentence, and takes a file from the answer.
    "Reply in English.": ["note.txt\n```\nthe chaski carries the load\n```\n"],
    "the llama carries the load": ["The note is about ", "a llama."],
    # opencode asks for a title of each conversation, with a system message of its own.
    "Generate a title for this conversation:": ["A note"],
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run the server: `speaker` writes the texts of SAYINGS, and `vectors` embeds."""
    folder = tmp_path_factory.mktemp("clients")
    speaking = write_speaking_llama(folder / "speaking.gguf", SAYINGS, _TEMPLATE, llama__context_length=32768)
    embedding = write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1)
    for name, file in (("speaker", speaking), ("vectors", embedding)):
        for _ in create(
            Store(folder),
            ModelName.parse(name),
            Recipe(sources=[file], parameters={"num_ctx": 32768} if name == "speaker" else {}),
        ):
            pass
    with running(Settings(address=SOMEWHERE, parallel=2), folder) as found:
        yield found


@pytest.fixture
def run(server: Running, tmp_path: Path) -> Run:
    """Run a program in an empty folder with its own home; return its standard output."""

    def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "CHASKI_URL": server.url}
        done = subprocess.run(
            list(map(str, command)),
            env=variables | dict(environment or {}),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run
