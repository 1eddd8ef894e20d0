import assert from "node:assert/strict";
import { test } from "node:test";

import { expertsIn } from "../../src/live/experts";

const layer = (number: number, requests: number, hits: number, gpu_hits = 0) => ({
  layer: number,
  requests,
  hits,
  bytes_read: 1_500_000,
  slots: 6,
  matrices: 24,
  gpu_hits,
  gpu_slots: gpu_hits ? 3 : 0,
});

test("all layers together, then the layer that finds the fewest", () => {
  const [all, worst] = expertsIn([layer(0, 100, 80), layer(1, 100, 40)]);
  assert.equal(all?.hits, 0.6);
  assert.match(all?.note ?? "", /^60 % found, room for 25 %, .* read$/);
  assert.deepEqual(worst, { name: "Layer 1", hits: 0.4, note: "40 % found, the fewest" });
});

test("experts on a GPU count as found", () => {
  const [all, worst] = expertsIn([layer(0, 100, 40, 40), layer(1, 100, 20, 20)]);
  assert.equal(all?.hits, 0.6);
  const places = "30 % on a GPU with room for 13 %, room for 25 % in memory";
  assert.match(all?.note ?? "", new RegExp(`^60 % found, ${places}, .* read$`));
  assert.equal(worst?.hits, 0.4);
});

test("a model that has not answered yet", () => {
  const [all, ...others] = expertsIn([layer(0, 0, 0), layer(1, 0, 0)]);
  assert.equal(all?.hits, 0);
  assert.deepEqual(others, []);
});
