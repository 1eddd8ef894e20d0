"""Agents as docs/agents.md sets them up: a task that needs a tool, or changes a file. See install.sh."""

from __future__ import annotations

import json
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
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": "speaker",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "speaker",
    }
    said = run([CLAUDE, "-p", "Claude, read the note!", "--allowedTools", "Bash"], environment)
    assert said.strip() == ANSWER


def test_codex(run: Run, server: Running) -> None:
    assert run(codex(server.url, "speaker", "Codex, read the note!")).strip() == ANSWER


def test_codex_for_ollama(run: Run, server: Running) -> None:
    """It looks for the model among those of `/api/tags` before it uses `/v1/responses`."""
    command = codex(server.url, "speaker:latest", "Codex, read the note!")
    plain = [part for part in command if "model_provider" not in str(part) and part != "-c"]
    environment = {"CODEX_OSS_BASE_URL": f"{server.url}/v1"}
    said = run([*plain[:-1], "--oss", "--local-provider", "ollama", plain[-1]], environment)
    assert said.strip() == ANSWER


def test_opencode(run: Run, server: Running, tmp_path: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.url}/v1"},
        "models": {"speaker": {"limit": {"context": 32768, "output": 8192}}},
    }
    settings = {"provider": {"chaski": provider}, "model": "chaski/speaker", "autoupdate": False}
    (tmp_path / "opencode.json").write_text(json.dumps(settings))
    # It would quote an argument that contains spaces.
    said = run([CLIENTS / "node_modules/.bin/opencode", "run", *["opencode,", "read", "the", "note!"]])
    assert said.strip().endswith(ANSWER)


@pytest.mark.parametrize(("provider", "path"), [("ollama", ""), ("openai", "/v1"), ("llama.cpp", "")])
def test_continue(run: Run, server: Running, tmp_path: Path, provider: str, path: str) -> None:
    model = f"{{name: speaker, model: speaker, provider: {provider}, apiBase: '{server.url}{path}'}}"
    config = tmp_path / "config.yaml"
    config.write_text(f"name: Local\nversion: 1.0.0\nschema: v1\nmodels:\n  - {model}\n")
    command = [CLIENTS / "node_modules/.bin/cn", "--config", config, "--auto", "-p"]
    assert run([*command, "Continue, read the note!"]).strip().endswith(ANSWER)


@pytest.mark.parametrize(
    ("model", "variable", "path"),
    [("ollama_chat/speaker", "OLLAMA_API_BASE", ""), ("openai/speaker", "OPENAI_API_BASE", "/v1")],
)
def test_aider(run: Run, server: Running, tmp_path: Path, model: str, variable: str, path: str) -> None:
    environment = {variable: f"{server.url}{path}", "OPENAI_API_KEY": "unused"}
    quiet = ["--no-git", "--no-check-update", "--no-analytics", "--no-show-model-warnings"]
    program = CLIENTS / "python/aider/bin/aider"
    asked = ["--model", model, "--chat-language", "English", "--yes-always", "--message", "Name a chaski."]
    run([program, *quiet, *asked, "note.txt"], environment)
    assert (tmp_path / "note.txt").read_text() == "the chaski carries the load\n"
