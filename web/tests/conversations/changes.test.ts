import assert from "node:assert/strict";
import { test } from "node:test";

import { applied, type Change, changedSettings, joined, withShownBranch } from "../../src/conversations/changes";
import type { Conversation, Message } from "../../src/conversations/types";

const message = (id: string, parent: string | null, more: Partial<Message> = {}): Message => ({
  id,
  parent,
  role: "user",
  content: id,
  created: 0,
  ...more,
});

function conversation(leaf: string | null, ...messages: Message[]): Conversation {
  const all = Object.fromEntries(messages.map((each) => [each.id, each]));
  return { id: "c", title: "", created: 0, updated: 0, model: "m", settings: {}, messages: all, leaf };
}

const waits = { answerId: "x", receiver: "tab" };
const START = conversation("b", message("a", null), message("b", "a", waits));
const CHANGES: [string, Change][] = [
  ["a title", { head: { title: "T" } }],
  ["a setting", { settings: { seed: 1, top_k: undefined } }],
  ["another setting", { settings: { top_k: 2 } }],
  ["a branch", { head: { leaf: "c" }, added: [message("c", "a")] }],
  ["a text", { edits: [{ id: "b", fields: { content: "text" } }] }],
  ["a received text", { edits: [{ id: "b", fields: { content: "received" }, only: waits }] }],
  ["an end", { edits: [{ id: "b", fields: { answerId: undefined, error: "Stopped." } }] }],
  ["an added text", { edits: [{ id: "c", fields: { content: "text" } }] }],
  ["a deletion", { removed: ["b"] }],
  ["a deletion of the branch", { removed: ["c"], head: { leaf: "a" } }],
];

/** Every order of three changes, except those that change or delete a message before it is added. */
const ORDERS = CHANGES.flatMap((one) => CHANGES.flatMap((two) => CHANGES.map((three) => [one, two, three]))).filter((order) => {
  const early = order.findIndex(([name]) => /added|of the branch/.test(name));
  return early < 0 || order.findLastIndex(([name]) => name === "a branch") < early;
});

test("joined changes do the same as one after the other", () => {
  for (const order of ORDERS) {
    const changes = order.map(([, change]) => change);
    const once = applied(START, changes.reduce(joined));
    assert.deepEqual(once, changes.reduce(applied, START), order.map(([name]) => name).join(", "));
  }
});

test("a change of settings names only what differs", () => {
  assert.deepEqual(changedSettings({ seed: 1, top_k: 2 }, { seed: 1, top_k: 3, min_p: 0 }), { top_k: 3, min_p: 0 });
  assert.deepEqual(changedSettings({ seed: 1, top_k: 2 }, { top_k: 2 }), { seed: undefined });
});

test("what a tab receives does not change a message that waits no longer, or for another tab", () => {
  const received = CHANGES.find(([name]) => name === "a received text")![1];
  for (const now of [{}, { answerId: "y", receiver: "tab" }, { answerId: "x", receiver: "other" }]) {
    const before = conversation("a", message("b", null, now));
    assert.deepEqual(applied(before, received), before);
  }
});

test("a tab follows its branch, and keeps it when another tab goes elsewhere", () => {
  const tree = [message("a", null), message("b", "a"), message("c", "a"), message("d", "b")];
  assert.equal(withShownBranch(conversation("d", ...tree), "b").leaf, "d");
  assert.equal(withShownBranch(conversation("c", ...tree), "d").leaf, "d");
  assert.equal(withShownBranch(conversation("c", ...tree), null).leaf, "c");
  assert.equal(withShownBranch(conversation("c", ...tree), "deleted").leaf, "c");
  assert.equal(withShownBranch(conversation("gone", ...tree), "lost").leaf, "d");
  assert.equal(withShownBranch(conversation("gone"), "lost").leaf, null);
});
