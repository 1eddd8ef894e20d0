import assert from "node:assert/strict";
import { test } from "node:test";

import { path } from "../../src/conversations/tree";
import type { Conversation } from "../../src/conversations/types";
import { readConversations } from "../../src/imports/conversations";
import { zipped } from "./zipped";

const PNG = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
  "base64",
);

const fileOf = (value: unknown, name = "conversations.json") => new File([JSON.stringify(value)], name);
const node = (id: string, parent: string | null, role: string, parts: unknown[], more: object = {}) => ({
  id,
  parent,
  children: [],
  message: { id, author: { role }, content: { content_type: "text", parts }, create_time: 1_700_000_000.5, ...more },
});

function chatGpt(nodes: { id: string }[], more: object = {}): object {
  const mapping = Object.fromEntries(nodes.map((each) => [each.id, each]));
  return { title: "Roads", id: "a-1", create_time: 1_700_000_000.25, update_time: 1_700_000_009, mapping, ...more };
}

const spoken = (conversation: Conversation) => path(conversation).map(({ role, content }) => [role, content]);

test("a conversation of ChatGPT with branches", async () => {
  const whole = chatGpt(
    [
      { id: "root", parent: null, children: ["s"], message: null } as never,
      node("s", "root", "system", [""], { metadata: { is_visually_hidden_from_conversation: true } }),
      node("u", "s", "user", ["How long?"]),
      node("one", "u", "assistant", ["Long."], { metadata: { model_slug: "gpt-4o" } }),
      node("two", "u", "assistant", ["Very \ue200cite\ue202turn0\ue201long."]),
      node("v", "two", "user", ["Thanks"]),
    ],
    { current_node: "v" },
  );
  const { conversations, unread } = await readConversations(fileOf([whole]));
  const [only] = conversations as [Conversation];
  assert.equal(unread, 0);
  assert.equal(only.id, "chatgpta1");
  assert.equal(only.title, "Roads");
  assert.equal(only.created, 1_700_000_000_250);
  assert.deepEqual(spoken(only), [
    ["user", "How long?"],
    ["assistant", "Very long."],
    ["user", "Thanks"],
  ]);
  assert.equal(Object.keys(only.messages).length, 4);
  assert.equal(only.messages.mone!.model, "gpt-4o");
  assert.equal(only.messages.mone!.parent, "mu");
});

test("thoughts, calls and results of ChatGPT", async () => {
  const kind = (content_type: string, more: object) => ({ content: { content_type, ...more } });
  const whole = chatGpt(
    [
      node("u", null, "user", ["Compute"]),
      node("t", "u", "assistant", [], kind("thoughts", { thoughts: [{ summary: "s", content: "I think" }] })),
      node("r", "t", "assistant", [], kind("reasoning_recap", { content: "Thought for 3 s" })),
      node("c", "r", "assistant", [], { ...kind("code", { text: "1 + 1" }), recipient: "python" }),
      node("o", "c", "tool", [], { ...kind("execution_output", { text: "2" }), author: { role: "tool", name: "python" } }),
      node("a", "o", "assistant", ["It is 2."]),
    ],
    { current_node: "a" },
  );
  const [only] = (await readConversations(fileOf(whole))).conversations as [Conversation];
  const [, call, result, answer] = path(only);
  assert.deepEqual(call!.calls, [{ function: { name: "python", arguments: { input: "1 + 1" } } }]);
  assert.equal(call!.thinking, "I think");
  assert.deepEqual([result!.role, result!.toolName, result!.content], ["tool", "python", "2"]);
  assert.equal(answer!.content, "It is 2.");
  assert.equal(answer!.thinking, undefined);
});

test("images are in the archive of ChatGPT, or named", async () => {
  const pointer = (id: string) => ({ content_type: "image_asset_pointer", asset_pointer: id });
  const parts = [pointer("file-service://file-abc"), pointer("sediment://file_00ff"), pointer("sediment://file_gone"), "see"];
  const attachments = [
    { id: "file_gone", name: "lost.png" },
    { id: "file-pdf", name: "report.pdf" },
  ];
  const content = { content_type: "multimodal_text", parts };
  const whole = chatGpt([node("u", null, "user", [], { content, metadata: { attachments } })]);
  const archive = zipped({
    "chat.html": "<script>alert(1)</script>",
    "shared_conversations.json": "[{}]",
    "conversations-000.json": JSON.stringify([whole]),
    "conversations-001.json": JSON.stringify([{ ...whole, id: "other" }]),
    "file-abc-photo.png": PNG,
    "user/file_00ff-1234.dat": PNG,
  });
  const read = await readConversations(new File([archive], "export.zip"));
  assert.deepEqual(
    read.conversations.map(({ id }) => id),
    ["chatgpta1", "chatgptother"],
  );
  const message = read.conversations[0]!.messages.mu!;
  assert.deepEqual(message.images, [PNG.toString("base64"), PNG.toString("base64")]);
  assert.match(message.content, /\[File report\.pdf was attached here\.\].*\[Image lost\.png is not in the export\.\].*see/s);
  assert.deepEqual([...new Set(read.missing)], ["lost.png"]);
});

function openWebUi(messages: Record<string, object>, currentId: string, more: object = {}): object {
  return {
    id: "b-2",
    title: "Rivers",
    created_at: 1_700_000_000,
    updated_at: 1_700_000_100,
    chat: { title: "Rivers", models: ["llama3.2:latest"], history: { messages, currentId }, ...more },
  };
}

test("a conversation of Open WebUI with branches, thoughts, images and settings", async () => {
  const data = `data:image/png;base64,${PNG.toString("base64")}`;
  const thought =
    '<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n&gt; so &lt;it&gt;\n</details>\n';
  const messages = {
    s: { id: "s", parentId: null, childrenIds: ["u"], role: "system", content: "Be brief." },
    u: {
      ...{ id: "u", parentId: "s", childrenIds: ["one", "two"], role: "user", content: "Which?", timestamp: 1_700_000_001 },
      files: [
        { type: "image", url: data },
        { type: "image", url: "/api/v1/files/77/content", name: "map.png" },
        { type: "file", name: "notes.txt", file: { data: { content: "the notes" } } },
      ],
    },
    one: { id: "one", parentId: "u", childrenIds: [], role: "assistant", content: `${thought}The Amazon.`, model: "qwen3:4b" },
    two: { id: "two", parentId: "u", childrenIds: [], role: "assistant", content: "", error: { content: "out of memory" } },
  };
  const params = { temperature: 0.4, system: "", seed: "x", stop: ["a"] };
  const read = await readConversations(fileOf([openWebUi(messages, "one", { params })]));
  const [only] = read.conversations as [Conversation];
  assert.deepEqual(
    [only.id, only.title, only.model, only.created],
    ["openwebuib2", "Rivers", "llama3.2:latest", 1_700_000_000_000],
  );
  assert.deepEqual(only.settings, { temperature: 0.4, system: "Be brief." });
  const [question, answer] = path(only);
  assert.equal(question!.parent, null);
  assert.deepEqual(question!.images, [PNG.toString("base64")]);
  assert.deepEqual(question!.files, [{ name: "notes.txt", text: "the notes" }]);
  assert.match(question!.content, /^\[Image map\.png is not in the export\.\]\n\nWhich\?$/);
  assert.deepEqual([answer!.content, answer!.thinking, answer!.model], ["The Amazon.", "so <it>", "qwen3:4b"]);
  assert.equal(only.messages.mtwo!.error, "out of memory");
  assert.deepEqual(read.missing, ["map.png"]);
});

/** Open WebUI writes values as JSON, and escapes it for HTML. */
function escaped(value: unknown): string {
  return JSON.stringify(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

/** An element of a call; `inside` is its result in newer versions. */
function called(name: string, given: unknown, result: string, inside = ""): string {
  const values = `id="call_${name}" name="${name}" arguments="${escaped(given)}"`;
  return `<details type="tool_calls" done="true" ${values}${result}>\n<summary>Tool Executed</summary>\n${inside}</details>\n`;
}

test("calls of tools of Open WebUI are calls with their results, before the answer", async () => {
  const thought = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n&gt; look\n</details>\n';
  const content =
    thought +
    called("weather", '{"city": "<Cusco>"}', ` result="${escaped('{"sky": "sun"}')}" files="" embeds=""`) +
    called("time", {}, "", `${escaped("noon & more")}\n`) +
    "Now a sum." +
    '<details type="code_interpreter" done="true" output="{&quot;stdout&quot;: &quot;2&quot;}">\n<summary>Analyzed</summary>\n' +
    "```python\nprint(1 + 1)\n```\n</details>\n" +
    "It is sunny, and 2.";
  const messages = {
    u: { id: "u", parentId: null, role: "user", content: "Weather?" },
    a: { id: "a", parentId: "u", role: "assistant", content, model: "qwen3:4b" },
    b: { id: "b", parentId: "a", role: "user", content: "Thanks." },
    c: { id: "c", parentId: "b", role: "assistant", content: called("open", {}, "").replace("true", "false") },
  };
  const [only] = (await readConversations(fileOf([openWebUi(messages, "c")]))).conversations as [Conversation];
  const [, first, sky, noon, second, sum, answer, thanks, last, lost] = path(only);
  assert.deepEqual(spoken(only), [
    ["user", "Weather?"],
    ["assistant", ""],
    ["tool", '{"sky": "sun"}'],
    ["tool", "noon & more"],
    ["assistant", "Now a sum."],
    ["tool", '{\n  "stdout": "2"\n}'],
    ["assistant", "It is sunny, and 2."],
    ["user", "Thanks."],
    ["assistant", ""],
    ["tool", "[The result of this call is not in the export.]"],
  ]);
  assert.equal(first!.thinking, "look");
  assert.deepEqual(first!.calls, [
    { id: "call_weather", function: { name: "weather", arguments: { city: "<Cusco>" } } },
    { id: "call_time", function: { name: "time", arguments: {} } },
  ]);
  assert.deepEqual(
    [sky!.toolName, noon!.toolName, sum!.toolName, lost!.toolName],
    ["weather", "time", "code_interpreter", "open"],
  );
  assert.deepEqual(second!.calls, [{ function: { name: "code_interpreter", arguments: { code: "print(1 + 1)" } } }]);
  assert.deepEqual([answer!.id, thanks!.parent, answer!.calls, answer!.model], ["ma", "ma", undefined, "qwen3:4b"]);
  assert.equal(last!.calls!.length, 1);
});

test("an answer of Open WebUI whose calls are in a list of its own", async () => {
  const output = [
    { type: "reasoning", summary: [{ type: "summary_text", text: "look" }] },
    { type: "function_call", call_id: "c1", name: "weather", arguments: '{"city": "Cusco"}' },
    { type: "function_call_output", call_id: "c1", output: [{ type: "input_text", text: "sun" }] },
    { type: "message", content: [{ type: "output_text", text: "It is sunny." }] },
  ];
  const messages = {
    u: { id: "u", parentId: null, role: "user", content: "Weather?" },
    a: { id: "a", parentId: "u", role: "assistant", content: "It is sunny.", output },
  };
  const [only] = (await readConversations(fileOf([openWebUi(messages, "a")]))).conversations as [Conversation];
  const turns = [
    ["user", "Weather?"],
    ["assistant", ""],
    ["tool", "sun"],
    ["assistant", "It is sunny."],
  ];
  assert.deepEqual(spoken(only), turns);
  assert.deepEqual(path(only)[1]!.calls, [{ id: "c1", function: { name: "weather", arguments: { city: "Cusco" } } }]);
});

test("one chat of Open WebUI in a file of its own", async () => {
  const messages = { u: { id: "u", parentId: null, role: "user", content: [{ type: "text", text: "hi" }] } };
  const { chat } = openWebUi(messages, "u") as { chat: object };
  const [only] = (await readConversations(fileOf(chat))).conversations as [Conversation];
  assert.deepEqual(spoken(only), [["user", "hi"]]);
});

const HOSTILE: [string, unknown][] = [
  ["a cycle", chatGpt([node("a", "b", "user", ["x"]), node("b", "a", "user", ["y"]), node("c", null, "user", ["z"])])],
  ["a parent that is itself", chatGpt([node("a", "a", "user", ["x"]), node("c", null, "user", ["z"])])],
  [
    "values of other kinds",
    chatGpt([
      { id: "n", message: 7 } as never,
      { id: "o", message: { content: [], author: 3 } } as never,
      node("c", "n", "user", ["z", 3, null, {}]),
    ]),
  ],
  ["a title that is an object", { ...chatGpt([node("c", null, "user", ["z"])]), title: {}, create_time: "x", current_node: 4 }],
];
for (const [name, value] of HOSTILE)
  test(`${name} does no harm`, async () => {
    const [only] = (await readConversations(fileOf([value]))).conversations as [Conversation];
    assert.deepEqual(spoken(only), [["user", "z"]]);
    assert.equal(typeof only.title, "string");
  });

test("names of an object's prototype are only names", async () => {
  const text = `{"mapping": {"__proto__": {"parent": null, "message": {"author": {"role": "user"}, "content": {"parts": ["x"]}}}}}`;
  const [only] = (await readConversations(new File([`[${text}]`], "x.json"))).conversations as [Conversation];
  assert.deepEqual(spoken(only), [["user", "x"]]);
  assert.equal(({} as Record<string, unknown>).parent, undefined);
});

test("a deep conversation is read in time", async () => {
  const nodes = Array.from({ length: 20_000 }, (_, index) => node(`n${index}`, index ? `n${index - 1}` : null, "user", ["x"]));
  const started = performance.now();
  const [only] = (await readConversations(fileOf([chatGpt(nodes, { current_node: "n19999" })]))).conversations as [Conversation];
  assert.equal(Object.keys(only.messages).length, 20_000);
  assert.ok(performance.now() - started < 5000);
});

test("what cannot be read is counted, and what is no export is named", async () => {
  const { conversations, unread } = await readConversations(
    fileOf([chatGpt([node("c", null, "user", ["z"])]), 7, { title: "x" }]),
  );
  assert.deepEqual([conversations.length, unread], [1, 2]);
  for (const value of [[], {}, null, [1], { format: "other", conversations: [] }])
    await assert.rejects(readConversations(fileOf(value)), { message: /^conversations\.json is not an export of conversations/ });
});

test("damaged archives are named", async () => {
  const whole = zipped({ "conversations.json": JSON.stringify([chatGpt([node("c", null, "user", ["z"])])]) });
  const cut = new File([whole.slice(0, whole.length - 30)], "cut.zip");
  await assert.rejects(readConversations(cut), { message: /^cut\.zip is a damaged ZIP archive/ });
  const changed = whole.slice();
  changed.fill(0xff, 50, 90);
  await assert.rejects(readConversations(new File([changed], "bad.zip")), { message: /^bad\.zip / });
  await assert.rejects(readConversations(new File([zipped({ "a.txt": "x" })], "other.zip")), { message: /is not an export/ });
  const locked = whole.slice();
  locked[locked.length - 22 - 46 - "conversations.json".length + 8] = 1;
  await assert.rejects(readConversations(new File([locked], "locked.zip")), { message: /is encrypted/ });
});

test("the page gets time to respond", async () => {
  const many = Array.from({ length: 3000 }, (_, index) =>
    chatGpt([node("c", null, "user", ["z".repeat(2000)])], { id: `${index}` }),
  );
  const file = fileOf(many);
  let longest = 0;
  let last = performance.now();
  const timer = setInterval(() => {
    longest = Math.max(longest, performance.now() - last);
    last = performance.now();
  }, 1);
  const { conversations } = await readConversations(file);
  clearInterval(timer);
  assert.equal(conversations.length, 3000);
  assert.ok(longest > 0 && longest < 500, `${longest} ms`);
});
