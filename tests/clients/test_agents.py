"""Claude Code and Codex with their default settings: a task that needs a tool call. See install.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, Run, codex
from tests.server.running import Running

CLAUDE = CLIENTS / "node_modules/.bin/claude"
ANSWER = "The note is about a llama."

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not CLAUDE.exists(), reason="tests/clients/install.sh was not run"),
]


@pytest.fixture(autouse=True)
def note(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("the llama carries the load")


def test_claude_code(run: Run, server: Running) -> None:
    environment = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "unused",
        "ANTHROPIC_MODEL": "speaker",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "speaker",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    said = run([CLAUDE, "-p", "Claude, read the note!", "--allowedTools", "Bash"], environment)
    assert said.strip() == ANSWER


def test_codex(run: Run, server: Running) -> None:
    assert run(codex(server.url, "speaker", "Codex, read the note!")).strip() == ANSWER
