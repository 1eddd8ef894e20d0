import assert from "node:assert/strict";
import { test } from "node:test";

import { directionOf, ownDirection } from "../../src/markdown/direction";

for (const [text, direction] of [
  ["hello", "ltr"],
  ["مرحبا hello", "rtl"],
  ["hello مرحبا", "ltr"],
  ["1. שלום", "rtl"],
  ["| ܫܠܡܐ | a |", "rtl"],
  ["", "ltr"],
  ["12 %", "ltr"],
  ["- `pip install` تثبيت", "rtl"],
  ["$x^2$ معادلة", "rtl"],
  ["``a ` b`` שלום", "rtl"],
  ["[](https://example.org) سلام", "rtl"],
] as const)
  test(`${JSON.stringify(text)} is ${direction}`, () => {
    assert.equal(directionOf(text), direction);
  });

test("a long text of unclosed code is read quickly", () => {
  const started = performance.now();
  for (const text of ["`".repeat(100_000), "`a".repeat(50_000), "](".repeat(50_000), "$a".repeat(50_000)]) directionOf(text);
  assert.ok(performance.now() - started < 2000);
});

test("only a block with letters has its own direction", () => {
  assert.equal(ownDirection("1. a"), "auto");
  for (const text of ["", "12 %", "*_".repeat(1000), "`a`", "$x$"]) assert.equal(ownDirection(text), undefined);
});
