import assert from "node:assert/strict";
import { test } from "node:test";

import { elements } from "../../src/imports/elements";

/** The elements of a text that comes in pieces of some bytes. */
async function read(text: string, step: number): Promise<unknown[]> {
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  const pieces = new ReadableStream<Uint8Array>({
    pull(control) {
      if (at < bytes.length) control.enqueue(bytes.slice(at, at + step));
      else control.close();
      at += step;
    },
  });
  const found: unknown[] = [];
  for await (const each of elements(pieces)) found.push(each);
  return found;
}

const TRICKY = [{ a: '],"}{[\\', b: [1, [2, { c: [] }]] }, "é€😀\\", [], [[]], { "x,y": '\\"' }];

for (const step of [1, 2, 3, 7, 1000]) {
  test(`a list is cut into its elements in pieces of ${step} bytes`, async () => {
    assert.deepEqual(await read(JSON.stringify(TRICKY), step), TRICKY);
    assert.deepEqual(await read(`\ufeff \n${JSON.stringify(TRICKY, null, 3)}\n`, step), TRICKY);
  });
  test(`the list in an object is found in pieces of ${step} bytes`, async () => {
    const whole = { format: "x", more: [1], conversations: TRICKY, last: { conversations: [5] } };
    assert.deepEqual(await read(JSON.stringify(whole), step), TRICKY);
    assert.deepEqual(await read(JSON.stringify(whole, null, 1), step), TRICKY);
  });
  test(`an object without a list is one element in pieces of ${step} bytes`, async () => {
    const whole = { mapping: { a: [1], conversations: { b: [] } } };
    assert.deepEqual(await read(JSON.stringify(whole), step), [whole]);
  });
}

for (const [name, text, problem] of [
  ["nothing", "", /is empty/],
  ["a cut list", '[{"a": 1}, {"b"', /ends in the middle/],
  ["a cut object", '{"conversations": [{"a": 1}]', /ends in the middle/],
  ["a cut text", '{"a": "', /not valid JSON/],
  ["another text", "hello", /not valid JSON/],
  ["a broken element", "[{a}]", /not valid JSON/],
] as const)
  test(`${name} is a problem`, async () => {
    await assert.rejects(read(text, 5), { message: problem });
  });

test("an empty list has no elements", async () => {
  for (const text of ["[]", " [ \n ] ", '{"conversations": []}']) assert.deepEqual(await read(text, 4), []);
});

test("deep nesting and many elements are read in time", async () => {
  const started = performance.now();
  assert.equal((await read(`[${"0,".repeat(200_000)}0]`, 65536)).length, 200_001);
  await assert.rejects(read("[".repeat(200_000), 65536));
  assert.ok(performance.now() - started < 5000);
});
