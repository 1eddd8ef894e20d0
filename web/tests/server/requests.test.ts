import assert from "node:assert/strict";
import { test } from "node:test";

import { lines, ServerError } from "../../src/server/requests";

async function read(...pieces: (string | Error)[]): Promise<unknown[]> {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    pull(control) {
      const piece = pieces.shift();
      if (piece === undefined) control.close();
      else if (piece instanceof Error) control.error(piece);
      else control.enqueue(encoder.encode(piece));
    },
  });
  const found: unknown[] = [];
  for await (const each of lines(new Response(body))) found.push(each);
  return found;
}

test("lines are complete, however the pieces are cut", async () => {
  const text = '{"a":"é"}\n\n{"b":2}\n';
  for (let cut = 0; cut <= text.length; cut++)
    assert.deepEqual(await read(text.slice(0, cut), text.slice(cut)), [{ a: "é" }, { b: 2 }]);
});

test("a line with an error throws it", async () => {
  await assert.rejects(read('{"a":1}\n{"error":"no memory"}\n'), (error) => error instanceof ServerError && error.status === 500);
});

test("a lost connection is an error with status 0", async () => {
  await assert.rejects(
    read('{"a":1}\n', new TypeError("network")),
    (error) => error instanceof ServerError && error.status === 0,
  );
});
