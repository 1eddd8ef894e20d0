import assert from "node:assert/strict";
import { test } from "node:test";

import { isSameName, matching, misfits, usualModel } from "../../src/models/choice";
import type { ListedModel, RunningModel } from "../../src/server/types";

function model(name: string, capabilities = ["completion"], more: Partial<ListedModel> = {}): ListedModel {
  const details = { family: "llama", parameter_size: "8.0B", quantization_level: "Q4_K_M" };
  return { name, digest: "", size: 1, modified_at: "", details, capabilities, ...more };
}

const GUIDE = model("guide:latest", ["completion"], { bundled: true });
const EMBEDDER = model("nomic-embed-text:latest", ["embedding"]);
const RANKER = model("ranker:latest", ["rerank"]);
const [NEW, OLD] = [model("new:8b", ["completion", "tools"]), model("old:1b")];
const loaded = (name: string) => [{ name } as RunningModel];

test("a new conversation begins with the newest model that chats", () => {
  assert.equal(usualModel([EMBEDDER, RANKER, NEW, OLD, GUIDE], [], ""), "new:8b");
  assert.equal(usualModel([EMBEDDER, NEW, OLD, GUIDE], loaded(EMBEDDER.name), ""), "new:8b");
});

test("a model in memory comes before a newer one, and the choice of the user before both", () => {
  assert.equal(usualModel([NEW, OLD, GUIDE], loaded("old:1b"), ""), "old:1b");
  assert.equal(usualModel([NEW, OLD, GUIDE], loaded("old:1b"), "guide:latest"), "guide:latest");
  assert.equal(usualModel([NEW, OLD, GUIDE], loaded("guide:latest"), ""), "new:8b");
});

test("the guide is taken if no other model chats, and a choice only if it chats and is there", () => {
  assert.equal(usualModel([EMBEDDER, GUIDE], [], ""), "guide:latest");
  assert.equal(usualModel([EMBEDDER, NEW, GUIDE], [], EMBEDDER.name), "new:8b");
  assert.equal(usualModel([NEW, GUIDE], [], "gone:1b"), "new:8b");
  assert.equal(usualModel([EMBEDDER], [], ""), "");
  assert.equal(usualModel([], [], "kept:1b"), "kept:1b");
});

test("a search finds names, sizes, quantizations and abilities; models that cannot chat come last", () => {
  const all = [EMBEDDER, NEW, OLD, GUIDE];
  const names = (search: string) => matching(all, search).map(({ name }) => name.split(":")[0]);
  assert.deepEqual(names(""), ["new", "old", "guide", "nomic-embed-text"]);
  assert.deepEqual(names("TOOLS"), ["new"]);
  assert.deepEqual(names("q4_k 8.0b old"), ["old"]);
  assert.deepEqual(names("embedding"), ["nomic-embed-text"]);
  assert.deepEqual(names("nothing such"), []);
});

test("what a model cannot do that a conversation needs is said", () => {
  const words = (found: ListedModel | undefined, needs = {}) => misfits(found, needs).map(({ problem }) => problem);
  assert.deepEqual(words(NEW, { tools: true }), []);
  assert.deepEqual(words(OLD, { images: true, tools: true, thinking: true }), [
    "does not see images",
    "does not use tools, which the settings offer",
    "does not think, which the settings ask for",
  ]);
  assert.deepEqual(words(EMBEDDER), ["makes vectors of texts and cannot chat"]);
  assert.deepEqual(words(RANKER), ["ranks texts and cannot chat"]);
  assert.match(words(model("broken", []))[0]!, /cannot be read/);
  assert.deepEqual(words(undefined), ["is not on this server"]);
  const short = { ...NEW, details: { ...NEW.details, context_length: 4096 } };
  assert.deepEqual(words(short, { characters: 16_000 }), []);
  assert.deepEqual(words(short, { characters: 40_000 }), ["reads at most 4,096 tokens, and this is about 10,000"]);
  // Names of adapters are models that the server does not list.
  assert.equal(misfits(undefined, {})[0]!.isRefused, false);
  assert.equal(misfits(EMBEDDER, {})[0]!.isRefused, true);
});

test("names are equal without their case and the tag latest", () => {
  assert.ok(isSameName("Guide", "guide:latest"));
  assert.ok(isSameName("localhost:5000/a/b", "localhost:5000/a/b:latest"));
  assert.ok(!isSameName("qwen3:4b", "qwen3:8b"));
});
