import assert from "node:assert/strict";
import { test } from "node:test";

import { ALTERNATIVES, defaultOf, KEEP_ALIVE, LENGTH, parametersOf, SAMPLING, trainedContext } from "../../src/chat/options";
import type { ShownModel } from "../../src/server/types";

const shown = (more: Partial<ShownModel>) => ({ capabilities: [], model_info: {}, ...more }) as unknown as ShownModel;

test("every option has a meaning, and a slider within its range", () => {
  for (const { name, meaning, slider, step, min = -Infinity, max = Infinity } of [...SAMPLING, ...LENGTH, ALTERNATIVES]) {
    assert.ok(meaning.length > 10, name);
    assert.ok(step > 0, name);
    if (slider) assert.ok(slider[0] >= min && slider[1] <= max && slider[0] < slider[1], name);
  }
  assert.equal(KEEP_ALIVE.unset, "5m");
});

test("the parameters of a model are its numbers", () => {
  const parameters =
    'stop                           "a b"\ntemperature                    0.6\ntop_k                          20\nstop 7';
  assert.deepEqual(parametersOf(shown({ parameters })), { temperature: 0.6, top_k: 20, stop: 7 });
  assert.deepEqual(parametersOf(shown({})), {});
  assert.deepEqual(parametersOf(null), {});
});

test("a default is the model's, otherwise chaski's", () => {
  const option = (name: string) => [...SAMPLING, ...LENGTH].find((each) => each.name === name)!;
  assert.deepEqual(defaultOf(option("temperature"), { temperature: 0 }), { value: 0, isOfModel: true });
  assert.deepEqual(defaultOf(option("temperature"), {}), { value: 0.8, isOfModel: false });
  assert.deepEqual(defaultOf(option("seed"), {}), { value: undefined, isOfModel: false });
});

test("the trained context is in the metadata", () => {
  assert.equal(trainedContext(shown({ model_info: { "llama.context_length": 8192 } })), 8192);
  assert.equal(trainedContext(shown({ model_info: { "llama.context_length": "x" } })), undefined);
  assert.equal(trainedContext(null), undefined);
});
