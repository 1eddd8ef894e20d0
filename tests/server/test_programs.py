"""Programs and packages of others, with their default settings: each finishes a task with a call of a tool.

`tools/install_programs.sh` installs them. The model says set texts, by what its prompt ends with.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaski.names import ModelName
from chaski.runner.messages import Generate, Put
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import FakeWorker, Script
from tests.server.running import Running, running
from tests.server.test_openai_client import TEMPLATE
from tests.tiny_llama import write_tiny_llama

PROGRAMS = Path(__file__).parents[2] / "build" / "programs" / "node_modules"
MODELS = ("thinker", "gpt-5.5")  # Codex knows the second, and sends it other tools

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PROGRAMS.is_dir(), reason="tools/install_programs.sh installs the programs"),
]


@pytest.fixture
def rules() -> dict[str, str]:
    """What is said, by a text that the prompt has; the first that fits counts."""
    return {}


@pytest.fixture
def server(tmp_path: Path, rules: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    script = Script(context=200_000)
    say = FakeWorker._say

    def say_by_rule(worker: FakeWorker, call: Generate, put: Put, ticket: Any) -> None:
        prompt = bytes(token for token in call.prompt if isinstance(token, int)).decode(errors="replace")
        script.pieces = (next((text for part, text in rules.items() if part in prompt), "ok"),)
        say(worker, call, put, ticket)

    monkeypatch.setattr(FakeWorker, "_say", say_by_rule)
    folder = tmp_path / "models"
    folder.mkdir()
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for name in MODELS:
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[file])):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def start(command: list[str], folder: Path, **environment: str) -> str:
    """Run a program in a folder of its own -> what it writes."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    path = os.environ["PATH"]
    found = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": path, "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize(
    ("model", "wish"),
    [
        ("thinker", call("exec_command", cmd="echo hello > a.txt")),
        (
            "gpt-5.5",
            call("apply_patch", input="*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"),
        ),
    ],
)
def test_codex(server: Running, rules: dict[str, str], tmp_path: Path, model: str, wish: str) -> None:
    settings = tmp_path / "home" / ".codex" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'model = "{model}"\nmodel_provider = "chaski"\n[model_providers.chaski]\nname = "chaski"\n'
        f'base_url = "{server.url}/v1"\nwire_api = "responses"\n'
    )
    rules |= {"[tool]": "All done.", "write hello": wish}
    work = tmp_path / "work"
    work.mkdir()
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    said = start(
        [str(PROGRAMS / ".bin" / "codex"), "exec", *flags, "-C", str(work), "write hello to a.txt"],
        tmp_path,
    )
    assert "All done." in said
    assert (work / "a.txt").read_text() == "hello\n"


def test_claude_code(server: Running, rules: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "b.txt"
    rules |= {
        "Generate a concise": '{"title": "Hello"}',
        "[tool]": "All done.",
        "write hello": call("Write", file_path=str(target), content="hello"),
    }
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    program = PROGRAMS / "@anthropic-ai" / f"claude-code-linux-{machine}" / "claude"
    said = start(
        [str(program), "-p", "write hello to b.txt", "--dangerously-skip-permissions"],
        tmp_path,
        **claude_environment(server),
    )
    assert "All done." in said
    assert target.read_text() == "hello"


def claude_environment(server: Running) -> Mapping[str, str]:
    return {
        "IS_SANDBOX": "1",  # it does not skip permissions as root otherwise
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "ANTHROPIC_MODEL": "thinker",
    }


RUNNER = """
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
const threads = [];
const client = new Anthropic({
  baseURL: process.argv[2], apiKey: 'any',
  fetch: async (url, init) => { threads.push(JSON.parse(init.body).thread.type); return fetch(url, init); },
});
const weather = betaTool({
  name: 'weather', description: 'How warm it is.',
  inputSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  run: ({ city }) => `12 in ${city}`,
});
const answer = await client.beta.messages.toolRunner({
  model: 'thinker', max_tokens: 100, messages: [{ role: 'user', content: 'how warm?' }], tools: [weather],
});
console.log(JSON.stringify({ threads, text: answer.content[0].text }));
"""


def test_the_tool_runner_of_the_npm_package(server: Running, rules: dict[str, str], tmp_path: Path) -> None:
    rules |= {
        "12 in Lima": "Cold.",
        "12 in Cusco": call("weather", city="Lima"),
        "how warm?": call("weather", city="Cusco"),
    }
    program = tmp_path / "runner.mjs"
    program.write_text(RUNNER)
    (tmp_path / "node_modules").symlink_to(PROGRAMS)
    found = json.loads(start(["node", str(program), server.url], tmp_path))
    assert found == {"threads": ["create", "continue", "continue"], "text": "Cold."}


AI_SDK = """
import { generateText, streamText, generateObject, tool, stepCountIs } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOllama } from 'ai-sdk-ollama';
import { z } from 'zod';
const url = process.argv[2], settings = { baseURL: url + '/v1', apiKey: 'any' };
const openai = createOpenAI(settings);
const models = {
  responses: openai('thinker'), chat: openai.chat('thinker'), anthropic: createAnthropic(settings)('thinker'),
  compatible: createOpenAICompatible({ name: 'any', ...settings })('thinker'),
  ollama: createOllama({ baseURL: url })('thinker'),
};
const weather = tool({
  description: 'How warm it is.', inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `12 in ${city}`,
});
const found = {};
for (const [name, model] of Object.entries(models)) {
  const asked = { model, prompt: 'how warm?', tools: { weather }, stopWhen: stepCountIs(5) };
  const whole = await generateText(asked);
  let streamed = '';
  for await (const piece of streamText(asked).textStream) streamed += piece;
  const made = await generateObject({ model, schema: z.object({ n: z.number() }), prompt: 'a number' });
  found[name] = [whole.text, whole.steps.length, streamed, made.object.n];
}
console.log(JSON.stringify(found));
"""


def test_the_ai_sdk(server: Running, rules: dict[str, str], tmp_path: Path) -> None:
    """Tools over several steps, whole and streamed, and an object, by each of its ways to a server."""
    rules |= {
        "12 in Lima": "Cold.",
        "12 in Cusco": call("weather", city="Lima"),
        "how warm?": f"Wait. {call('weather', city='Cusco')}",
        "a number": '{"n": 3}',
    }
    program = tmp_path / "sdk.mjs"
    program.write_text(AI_SDK)
    (tmp_path / "node_modules").symlink_to(PROGRAMS)
    found = json.loads(start(["node", str(program), server.url], tmp_path).splitlines()[-1])
    ways = ("responses", "chat", "anthropic", "compatible", "ollama")
    assert found == {way: ["Cold.", 3, "Wait.Cold.", 3] for way in ways}
