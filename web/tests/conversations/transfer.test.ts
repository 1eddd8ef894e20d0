import assert from "node:assert/strict";
import { test } from "node:test";

import { conversations } from "../../src/conversations/store";
import { exported, importFiles } from "../../src/conversations/transfer";
import type { Conversation } from "../../src/conversations/types";
import { models, readModels } from "../../src/models/list";

const CONVERSATION: Conversation = {
  id: "c",
  title: "Roads",
  created: 1,
  updated: 2,
  model: "m",
  settings: { mcp: ["http://tools.example/mcp?key=secret#part"] },
  messages: {
    a: {
      id: "a",
      parent: null,
      role: "assistant",
      content: "",
      created: 1,
      remote: { f: { server: "http://tools.example/mcp?key=secret", tool: "f" } },
    },
  },
  leaf: "a",
};

const fileOf = (value: unknown) => new File([JSON.stringify(value)], "x.json");
const exportOf = (conversation: unknown) => fileOf({ format: "chaski-conversations-1", conversations: [conversation] });

test("an export has no keys of MCP servers", async () => {
  const text = await exported([CONVERSATION]).text();
  assert.ok(!text.includes("secret"));
  const [only] = (JSON.parse(text) as { conversations: Conversation[] }).conversations;
  assert.deepEqual(only!.settings.mcp, ["http://tools.example/mcp"]);
  assert.equal(only!.messages.a!.remote!.f!.server, "http://tools.example/mcp");
});

const first = CONVERSATION.messages.a!;
const DAMAGED: [string, unknown][] = [
  ["no title", { ...CONVERSATION, title: 7 }],
  ["a list of messages", { ...CONVERSATION, messages: [] }],
  ["a message under another id", { ...CONVERSATION, messages: { b: first } }],
  ["a message of a stranger", { ...CONVERSATION, messages: { a: { ...first, role: "system" } } }],
  ["an image that is an address", { ...CONVERSATION, messages: { a: { ...first, images: ["http://x.example/i.png"] } } }],
  ["a call without a name", { ...CONVERSATION, messages: { a: { ...first, calls: [{ function: {} }] } } }],
  ["a tool that is nowhere", { ...CONVERSATION, messages: { a: { ...first, remote: { f: { server: 1, tool: "f" } } } } }],
  ["an id that is no word", { ...CONVERSATION, id: "../c" }],
  ["files without names", { ...CONVERSATION, messages: { a: { ...first, files: [{ text: "x" }] } } }],
  ["a message that follows itself", { ...CONVERSATION, messages: { a: { ...first, parent: "a" } } }],
  ["a schema that is no text", { ...CONVERSATION, settings: { schema: {} } }],
];
for (const [name, conversation] of DAMAGED)
  test(`an import refuses ${name}`, async () => {
    await assert.rejects(importFiles([exportOf(conversation)]), { message: /^x\.json has a conversation that is incomplete/ });
  });

test("an import counts what is new and what was here already", async () => {
  conversations.value = {};
  const other = { ...CONVERSATION, id: "d" };
  assert.equal(await importFiles([exportOf(CONVERSATION)]), "1 imported.");
  const both = [exportOf(CONVERSATION), exportOf(other), exportOf(other)];
  assert.equal(await importFiles(both), "1 imported, 1 was already here.");
  assert.equal(await importFiles(both), "0 imported, 2 were already here.");
  assert.deepEqual(Object.keys(conversations.value).sort(), ["c", "d"]);
});

test("an answer that was unfinished when it was exported is over", async () => {
  conversations.value = {};
  const messages = { a: { ...first, answerId: "x" } };
  await importFiles([exportOf({ ...CONVERSATION, messages })]);
  const { answerId, error } = conversations.value.c!.messages.a!;
  assert.deepEqual([answerId, error], [undefined, "The answer was stopped."]);
});

test("nothing of an import with a problem is added", async () => {
  conversations.value = {};
  const broken = { ...CONVERSATION, id: "e", title: 7 };
  await assert.rejects(importFiles([fileOf({ format: "chaski-conversations-1", conversations: [CONVERSATION, broken] })]));
  await assert.rejects(importFiles([exportOf(CONVERSATION), new File(["{"], "y.json")]), {
    message: /^y\.json is not valid JSON/,
  });
  assert.deepEqual(conversations.value, {});
});

test("the model of a conversation stays while the list of models is read, and where it cannot be", async () => {
  conversations.value = {};
  const storage = { getItem: () => null };
  Object.assign(globalThis, { localStorage: storage, sessionStorage: storage });
  const lists: (() => void)[] = [];
  const list = { models: [{ name: "m" }] };
  globalThis.fetch = () => new Promise((resolve) => lists.push(() => resolve(Response.json(list))));
  void readModels();
  const importing = importFiles([exportOf(CONVERSATION), exportOf({ ...CONVERSATION, id: "d", model: "gpt" })]);
  for (const answer of lists) answer();
  await importing;
  assert.deepEqual([conversations.value.c!.model, conversations.value.d!.model], ["m", ""]);

  conversations.value = {};
  models.value = [];
  globalThis.fetch = () => Promise.reject(new TypeError("unreachable"));
  void readModels();
  await importFiles([exportOf(CONVERSATION)]);
  assert.equal(conversations.value.c!.model, "m");
});
