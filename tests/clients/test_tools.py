"""Programs with a worker that answers by rules on its prompt: tools of all kinds, and several steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.chat.prompts import Prepared
from chaski.names import ModelName
from chaski.runner.channels.messages import ReplyCallback
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.clients.conftest import CLIENTS, Run, call, codex
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import FakeWorker, Script
from tests.server.running import Running, running
from tests.server.thinker import TEMPLATE
from tests.tiny_llama import write_tiny_llama

MODELS = ("thinker", "gpt-5.5")

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        not (CLIENTS / "node_modules").exists(), reason="tests/clients/install.sh was not run"
    ),
]


@pytest.fixture
def rules() -> dict[str, str]:
    """Return the answers by a text in the prompt; the first match counts."""
    return {}


@pytest.fixture
def server(tmp_path: Path, rules: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    script = Script(context=200_000)
    say = FakeWorker._say

    def say_by_rule(worker: FakeWorker, prepared: Prepared, put: ReplyCallback, ticket: Any) -> None:
        prompt = bytes(token for token in prepared.prompt.tokens).decode(errors="replace")
        script.pieces = (next((text for part, text in rules.items() if part in prompt), "ok"),)
        say(worker, prepared, put, ticket)

    monkeypatch.setattr(FakeWorker, "_say", say_by_rule)
    folder = tmp_path / "models"
    folder.mkdir()
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for name in MODELS:
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[file])):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def test_codex_with_tools_of_its_own_kinds(
    server: Running, rules: dict[str, str], run: Run, tmp_path: Path
) -> None:
    """Codex knows this model name, and sends it custom tools."""
    rules |= {
        "[tool]": "All done.",
        "write hello": call(
            "apply_patch", input="*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"
        ),
    }
    assert "All done." in run(codex(server.url, "gpt-5.5", "write hello to a.txt"))
    assert (tmp_path / "a.txt").read_text() == "hello\n"


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


def test_threads_of_the_tool_runner(server: Running, rules: dict[str, str], run: Run, tmp_path: Path) -> None:
    rules |= {
        "12 in Lima": "Cold.",
        "12 in Cusco": call("weather", city="Lima"),
        "how warm?": call("weather", city="Cusco"),
    }
    program = tmp_path / "runner.mjs"
    program.write_text(RUNNER)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    found = json.loads(run(["node", program, server.url]))
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


def test_the_ai_sdk_by_each_of_its_ways(
    server: Running, rules: dict[str, str], run: Run, tmp_path: Path
) -> None:
    """It tests tools over several steps, whole and streamed, and an object, with each of its providers."""
    rules |= {
        "12 in Lima": "Cold.",
        "12 in Cusco": call("weather", city="Lima"),
        "how warm?": f"Wait. {call('weather', city='Cusco')}",
        "a number": '{"n": 3}',
    }
    program = tmp_path / "sdk.mjs"
    program.write_text(AI_SDK)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    found = json.loads(run(["node", program, server.url]).splitlines()[-1])
    ways = ("responses", "chat", "anthropic", "compatible", "ollama")
    assert found == {way: ["Cold.", 3, "Wait.Cold.", 3] for way in ways}
