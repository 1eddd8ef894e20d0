import assert from "node:assert/strict";
import { test } from "node:test";

import type { Token, Tokens } from "marked";

import { type MathToken, parse } from "../../src/markdown/parse";

/** The formulas in a tree of tokens. */
function formulas(tokens: Token[]): MathToken[] {
  return tokens.flatMap((token) => {
    if (token.type === "math") return [token as unknown as MathToken];
    return formulas((token as Tokens.Generic).tokens ?? []);
  });
}

function depth(tokens: Token[]): number {
  return Math.max(0, ...tokens.map((token) => 1 + depth((token as Tokens.Generic).tokens ?? [])));
}

for (const [text, tex, isBlock] of [
  ["so $a + b$ is", "a + b", false],
  ["so \\(a\\) is", "a", false],
  ["$$\na\n$$", "a", true],
  ["\\[\na\n\\]", "a", true],
  ["so $$a$$ is", "a", true],
] as const)
  test(`${JSON.stringify(text)} has a formula`, () => {
    assert.deepEqual(
      formulas(parse(text)).map((each) => [each.tex, each.isBlock]),
      [[tex, isBlock]],
    );
  });

for (const text of ["from $5 to $10", "$ a $", "$5", "`$a$`", "a\n\n    $a$"])
  test(`${JSON.stringify(text)} has no formula`, () => {
    assert.deepEqual(formulas(parse(text)), []);
  });

test("deep quotes, lists and brackets parse quickly", () => {
  const started = performance.now();
  for (const text of [">".repeat(20_000), "- ".repeat(20_000), "[".repeat(50_000), "*".repeat(50_000)])
    assert.ok(depth(parse(text)) < 64);
  assert.ok(performance.now() - started < 5000);
});
