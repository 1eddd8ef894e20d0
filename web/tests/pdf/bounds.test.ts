import assert from "node:assert/strict";
import { test } from "node:test";

import { boundArrays, TOO_LARGE } from "../../src/pdf/bounds";

function bounded(): [typeof Uint8Array, () => number] {
  let refused = 0;
  const scope = { Uint8Array };
  boundArrays(scope, () => refused++);
  return [scope.Uint8Array, () => refused];
}

test("arrays up to the limit are created with their own type", () => {
  const [Bytes, refused] = bounded();
  assert.equal(new Bytes(32 << 20).length, 32 << 20);
  assert.deepEqual(new Bytes([1, 2, 3]), Uint8Array.of(1, 2, 3));
  assert.equal(new Bytes(new ArrayBuffer(8), 4).length, 4);
  assert.ok(new Uint8Array(1) instanceof Bytes);
  assert.equal(Bytes.from([7])[0], 7);
  assert.equal(refused(), 0);
});

test("a larger array is refused and reported", () => {
  const [Bytes, refused] = bounded();
  assert.throws(() => new Bytes((32 << 20) + 1), { name: "RangeError", message: TOO_LARGE });
  assert.equal(refused(), 1);
});

test("the browser's unlimited stream is removed", () => {
  const scope = { Uint8Array, DecompressionStream };
  boundArrays(scope, () => {});
  assert.ok(!("DecompressionStream" in scope));
});
