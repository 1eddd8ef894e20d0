import assert from "node:assert/strict";
import { test } from "node:test";

import { McpError, messages, type RpcMessage } from "../../src/mcp/messages";

/** Reads an answer that arrives in these pieces. */
async function read(type: string, ...pieces: string[]): Promise<RpcMessage[]> {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start(control) {
      for (const piece of pieces) control.enqueue(encoder.encode(piece));
      control.close();
    },
  });
  const found: RpcMessage[] = [];
  for await (const each of messages(new Response(body, { headers: { "Content-Type": type } }), "http://x")) found.push(each);
  return found;
}

test("JSON is one message, or several", async () => {
  assert.deepEqual(await read("application/json; charset=utf-8", '{"id"', ":1}"), [{ id: 1 }]);
  assert.deepEqual(await read("application/json", '[{"id":1},{"id":2}]'), [{ id: 1 }, { id: 2 }]);
});

test("events end at an empty line, whatever the line ends and the pieces", async () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const text = ["event: message", 'data: {"id":', "data: 1}", "", ": a comment", 'data:{"id":2}', "", ""].join(end);
    for (let cut = 0; cut <= text.length; cut++)
      assert.deepEqual(await read("text/event-stream", text.slice(0, cut), `${text.slice(cut)}\n`), [{ id: 1 }, { id: 2 }]);
  }
});

test("an incomplete event is not a message", async () => {
  assert.deepEqual(await read("text/event-stream", 'data: {"id":1}\n\ndata: {"id":2}'), [{ id: 1 }]);
});

test("values that are not objects are skipped", async () => {
  assert.deepEqual(await read("application/json", '[null, 7, "x", {"id":1}]'), [{ id: 1 }]);
});

test("other answers are errors that say what to do", async () => {
  await assert.rejects(
    read("text/html", "<p>"),
    (error) => error instanceof McpError && /answers with text\/html/.test(error.message),
  );
  await assert.rejects(read("application/json", "{"), /does not answer with JSON\. Correct its address/);
  await assert.rejects(read("application/json", ...Array<string>(33).fill(" ".repeat(1 << 20))), /more than 32 MiB/);
});
