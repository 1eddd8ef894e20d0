import assert from "node:assert/strict";
import { test } from "node:test";

import { exported, importFile } from "../../src/conversations/transfer";
import type { Conversation } from "../../src/conversations/types";

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
  ["null", null],
  ["no title", { ...CONVERSATION, title: 7 }],
  ["a list of messages", { ...CONVERSATION, messages: [] }],
  ["a message under another id", { ...CONVERSATION, messages: { b: first } }],
  ["a message of a stranger", { ...CONVERSATION, messages: { a: { ...first, role: "system" } } }],
  ["an image that is an address", { ...CONVERSATION, messages: { a: { ...first, images: ["http://x.example/i.png"] } } }],
  ["a call without a name", { ...CONVERSATION, messages: { a: { ...first, calls: [{ function: {} }] } } }],
  ["a tool that is nowhere", { ...CONVERSATION, messages: { a: { ...first, remote: { f: { server: 1, tool: "f" } } } } }],
  ["a schema that is no text", { ...CONVERSATION, settings: { schema: {} } }],
];
for (const [name, conversation] of DAMAGED)
  test(`an import refuses ${name}`, async () => {
    await assert.rejects(importFile(exportOf(conversation)), { message: "A conversation in this file is incomplete." });
  });

test("an import rejects files that are not exports", async () => {
  await assert.rejects(importFile(new File(["{"], "x.json")), { message: "x.json is not valid JSON." });
  for (const value of [null, [], {}, { format: "other", conversations: [] }])
    await assert.rejects(importFile(fileOf(value)), { message: "x.json is not an export of this page." });
});
