import assert from "node:assert/strict";
import { test } from "node:test";

import { deletionText, replacementText } from "../../src/models/deletion";
import { monthOf, picked } from "../../src/models/suggestions";
import type { ListedModel, SuggestedModel, Suggestions } from "../../src/server/types";

function model(name: string, size: number, freed_bytes?: number, bundled?: boolean): ListedModel {
  const details = { family: "llama", parameter_size: "8.0B", quantization_level: "Q4_K_M" };
  return { name, digest: "", size, modified_at: "", details, capabilities: ["completion"], freed_bytes, bundled };
}

test("a deletion is said to free what it frees", () => {
  assert.match(deletionText(model("a:1b", 2e9, 2e9), false), /^This frees 2\.0 GB of the server's disk\. To use it again/);
  const part = deletionText(model("a:1b", 2e9, 5e8), false);
  assert.match(part, /^This frees 500 MB of the server's disk; the other 1\.5 GB are used elsewhere and stay\./);
  assert.match(deletionText(model("a:1b", 2e9, 0), false), /^This frees no space on the server's disk: its 2\.0 GB are/);
  assert.match(deletionText(model("a:1b", 2e9, 0), true), /It is in memory, and leaves it after its running answers\./);
});

test("after the deletion of a model named guide, the one that is a part of chaski is back", () => {
  const text = deletionText(model("guide:latest", 2e9, 2e9), false);
  assert.match(text, /gets its name back\.$/);
  assert.doesNotMatch(text, /must pull/);
});

test("a name that is taken is said to be replaced", () => {
  const models = [model("a:1b", 1, 1), model("b:latest", 1, 1), model("guide:latest", 1, undefined, true)];
  assert.equal(replacementText(models, ""), "");
  assert.equal(replacementText(models, "c"), "");
  assert.equal(replacementText(models, " B "), "b:latest exists, and is replaced.");
  assert.match(replacementText(models, "guide"), /^guide:latest is a part of chaski\. Choose another name for your model\.$/);
});

function list(available: number, ...memory: number[]): Suggestions {
  const models = memory.map((each) => ({ name: `m${each}`, memory: each, capabilities: ["completion"] }) as SuggestedModel);
  models.push({ name: "vectors", memory: 1, capabilities: ["embedding"] } as SuggestedModel);
  return { date: "2026-11", available: available ? { cpu: available } : {}, models };
}

test("the few models to get first chat, fit easily, and differ in size", () => {
  const names = (found: Suggestions) => picked(found, 3).map(({ name }) => name);
  assert.deepEqual(names(list(100, 1, 10, 20, 30, 60, 90)), ["m1", "m20", "m60"]);
  assert.deepEqual(names(list(20, 1, 10, 20)), ["m1", "m10"]);
  assert.deepEqual(names(list(0.5, 1, 10)), []);
  assert.deepEqual(names(list(0, 1, 10, 20)), ["m1", "m10", "m20"]); // the memory is not known
});

test("the list is dated in words", () => {
  assert.equal(monthOf("2026-11"), "November 2026");
});
