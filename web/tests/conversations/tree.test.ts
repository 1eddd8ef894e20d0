import assert from "node:assert/strict";
import { test } from "node:test";

import { below, leafWithout, openCalls, path, siblings, youngestLeaf } from "../../src/conversations/tree";
import type { Conversation, Message } from "../../src/conversations/types";

function conversation(...messages: [id: string, parent: string | null, more?: Partial<Message>][]): Conversation {
  const all = messages.map(([id, parent, more], created): [string, Message] => [
    id,
    { id, parent, role: "user", content: id, created, ...more },
  ]);
  const leaf = messages.at(-1)?.[0] ?? null;
  return { id: "c", title: "", created: 0, updated: 0, model: "m", settings: {}, messages: Object.fromEntries(all), leaf };
}

const ids = (messages: Message[]) => messages.map(({ id }) => id);
// a has the branches b (followed by d) and c.
const BRANCHES = conversation(["a", null], ["b", "a"], ["c", "a"], ["d", "b"]);

test("a path goes from the first message to a leaf", () => {
  assert.deepEqual(ids(path(BRANCHES)), ["a", "b", "d"]);
  assert.deepEqual(ids(path(BRANCHES, "c")), ["a", "c"]);
  assert.deepEqual(path(conversation()), []);
});

test("a path begins where a parent is missing", () => {
  assert.deepEqual(ids(path(conversation(["b", "lost"], ["c", "b"]))), ["b", "c"]);
});

test("the oldest sibling comes first, whatever the order in a file", () => {
  const { a, b, c, d } = BRANCHES.messages as Record<string, Message>;
  const turned = { ...BRANCHES, messages: { d, c, b, a } as Record<string, Message> };
  assert.deepEqual(ids(siblings(turned, c!)), ["b", "c"]);
});

test("the youngest leaf is the last message of the youngest branch", () => {
  assert.equal(youngestLeaf(BRANCHES, "a"), "c");
  assert.equal(youngestLeaf(BRANCHES, "b"), "d");
  assert.equal(youngestLeaf(BRANCHES, "d"), "d");
});

test("calls are open until each has its result", () => {
  const call = (name: string) => ({ function: { name, arguments: {} } });
  const asked: Partial<Message> = { role: "assistant", calls: [call("one"), call("two")] };
  const result: Partial<Message> = { role: "tool" };
  const after = (...results: [string, string, Partial<Message>][]) =>
    openCalls(path(conversation(["q", null], ["a", "q", asked], ...results)));
  assert.deepEqual(
    after()?.calls.map((each) => each.function.name),
    ["one", "two"],
  );
  assert.deepEqual(
    after(["r", "a", result])?.calls.map((each) => each.function.name),
    ["two"],
  );
  assert.equal(after(["r", "a", result], ["s", "r", result]), null);
  assert.equal(openCalls([]), null);
});

test("calls of an unfinished answer are not open", () => {
  const asked: Partial<Message> = { role: "assistant", calls: [{ function: { name: "one", arguments: {} } }], answerId: "x" };
  assert.equal(openCalls(path(conversation(["a", null, asked]))), null);
});

test("a message goes with all messages after it", () => {
  assert.deepEqual(ids(below(BRANCHES, "b")), ["b", "d"]);
  assert.deepEqual(ids(below(BRANCHES, "a")).sort(), ["a", "b", "c", "d"]);
  assert.deepEqual(below(BRANCHES, "lost"), []);
});

test("after a deletion the nearest other branch is shown, or the message before", () => {
  const without = (id: string, shown = BRANCHES.leaf) => leafWithout({ ...BRANCHES, leaf: shown }, below(BRANCHES, id));
  assert.equal(without("b"), "c");
  assert.equal(without("c", "c"), "d");
  assert.equal(without("c"), "d"); // another branch is shown, and stays
  assert.equal(without("d"), "b");
  assert.equal(without("a"), null);
});

test("siblings of the same millisecond have one order in all tabs", () => {
  const message = (id: string): Message => ({ id, parent: null, role: "user", content: "", created: 5 });
  const [a, b] = [message("a"), message("b")];
  const base = conversation();
  assert.deepEqual(ids(siblings({ ...base, messages: { b, a } }, a)), ["a", "b"]);
  assert.deepEqual(ids(siblings({ ...base, messages: { a, b } }, a)), ["a", "b"]);
});
