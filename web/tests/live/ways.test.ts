import assert from "node:assert/strict";
import { test } from "node:test";

import type { CacheKind, CacheSlot } from "../../src/live/watch";
import { cellOf, droppedOf, keptOf, ownersOf, sentence, tokenAt } from "../../src/live/ways";

// Two sequences share the cells 0 and 1. From cell 2, they alternate: sequence 0 has the even cells.
const FULL: CacheKind = {
  kind: "full",
  is_state: false,
  cells: 10,
  runs: [
    [0, 0, 0, 2, 1],
    [1, 0, 0, 2, 1],
    [0, 2, 2, 3, 2],
    [1, 3, 2, 2, 2],
  ],
};
const WINDOW: CacheKind = { kind: "window", is_state: false, cells: 4, runs: [[0, 0, 3, 2, 1]] };
const STATES: CacheKind = {
  kind: "state",
  is_state: true,
  cells: 3,
  runs: [
    [0, 0, 5, 1, 1],
    [0, 1, 3, 1, 1],
  ],
};
const SLOTS: CacheSlot[] = [
  { tokens: 5, is_running: true, shifted_at: null },
  { tokens: 4, is_running: false, shifted_at: null },
];
const PICTURE = { model: "m", slots: SLOTS, kinds: [FULL, WINDOW, STATES] };

test("each cell has its owners", () => {
  const owners = ownersOf(FULL);
  assert.equal(owners.size, 7);
  assert.deepEqual(owners.get(1), [
    { sequence: 0, position: 1 },
    { sequence: 1, position: 1 },
  ]);
  assert.deepEqual(owners.get(5), [{ sequence: 1, position: 3 }]);
});

test("a token and its cell lead to each other", () => {
  for (const [cell, owners] of ownersOf(FULL)) {
    assert.deepEqual(tokenAt(PICTURE, { kind: "full", cell }), owners[0]);
    for (const owner of owners) assert.equal(cellOf(FULL, owner), cell);
  }
  assert.equal(tokenAt(PICTURE, { kind: "full", cell: 9 }), null);
  assert.equal(tokenAt(PICTURE, null), null);
});

test("a window has dropped the tokens before it", () => {
  assert.equal(cellOf(WINDOW, { sequence: 0, position: 2 }), null);
  assert.equal(keptOf(WINDOW, 0), 2);
  assert.equal(droppedOf(WINDOW, SLOTS), 3 + 4);
  assert.equal(droppedOf(FULL, SLOTS), 0);
});

test("the first state that has read a token counts", () => {
  assert.equal(cellOf(STATES, { sequence: 0, position: 2 }), 1);
  assert.equal(cellOf(STATES, { sequence: 0, position: 3 }), 0);
  assert.equal(cellOf(STATES, { sequence: 0, position: 5 }), null);
  assert.deepEqual(tokenAt(PICTURE, { kind: "state", cell: 0 }), { sequence: 0, position: 4 });
});

test("a sentence describes the place of a token", () => {
  const told = (kind: CacheKind, position: number | null) =>
    sentence(kind, ownersOf(kind), SLOTS, { sequence: 0, position }, { sequence: 0, position });
  assert.equal(told(FULL, 1), "Cell 1: sequence 0, position 1; sequence 1, position 1 (shared).");
  assert.equal(told(WINDOW, 0), "The window has dropped sequence 0, position 0.");
  assert.equal(told(WINDOW, null), "Sequence 0: 2 tokens are here, 3 dropped by the window.");
  assert.equal(told(STATES, 4), "Row 0: sequence 0 after 5 tokens.");
  assert.equal(told(STATES, null), "Sequence 0: 2 states.");
  assert.equal(sentence(FULL, ownersOf(FULL), SLOTS, { kind: "full", cell: 9 }, null), "Cell 9 is free.");
});
