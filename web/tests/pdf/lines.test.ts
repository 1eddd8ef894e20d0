import assert from "node:assert/strict";
import { test } from "node:test";

import { Lines, type Piece, unknownShare } from "../../src/pdf/lines";

/** A piece of upright text, ten units high. */
function piece(str: string, x: number, y: number, more: Partial<Piece> = {}): Piece {
  return { str, width: 5 * str.length, height: 10, transform: [10, 0, 0, 10, x, y], hasEOL: false, ...more };
}

function textOf(...pieces: Piece[]): string {
  const lines = new Lines();
  for (const each of pieces) lines.add(each);
  return lines.text();
}

const END = { hasEOL: true };

test("pieces of a line form one line", () => {
  assert.equal(textOf(piece("along", 0, 0), piece(" ", 25, 0), piece("roads", 30, 0)), "along roads");
});

test("a step of one line starts a line, and a larger one starts a paragraph", () => {
  const pieces = [piece("a", 0, 100, END), piece("b", 0, 88, END), piece("c", 0, 60)];
  assert.equal(textOf(...pieces), "a\nb\n\nc");
});

test("lines of rotated text are separated, too", () => {
  const turned = (str: string, x: number, more = {}) => piece(str, x, 0, { transform: [0, 10, -10, 0, x, 0], ...more });
  assert.equal(textOf(turned("a", 100, END), turned("b", 112, END), turned("c", 140)), "a\nb\n\nc");
});

test("a wide gap separates columns", () => {
  assert.equal(textOf(piece("a", 0, 0), piece(" ", 5, 0, { width: 26 }), piece("b", 31, 0)), "a\tb");
  assert.equal(textOf(piece("a", 0, 0), piece(" ", 5, 0, { width: 24 }), piece("b", 29, 0)), "a b");
});

test("text that is drawn twice to look bold appears once, and its line still ends", () => {
  assert.equal(textOf(piece("Title", 0, 100), piece("Title", 0.3, 100, END), piece("text", 0, 88)), "Title\ntext");
  assert.equal(textOf(piece("ha", 0, 0), piece("ha", 10, 0)), "haha");
});

test("a word with a soft hyphen is joined", () => {
  assert.equal(textOf(piece("mes\u00ad", 0, 100, END), piece("sage", 0, 88)), "message");
});

test("accents join their letters", () => {
  assert.equal(textOf(piece("u\u0308", 0, 0)), "\u00fc");
});

test("codes without a character count as unknown", () => {
  const text = textOf(piece("a\u0001\u0002\ue000", 0, 0));
  assert.equal(text, "a\ufffd\ufffd\ufffd");
  assert.equal(unknownShare(text), 0.75);
  assert.equal(unknownShare("plain"), 0);
});

test("a page without text is empty", () => {
  assert.equal(textOf(piece(" ", 0, 0), piece("", 0, 0, END)), "");
});

test("text without a size does not start a paragraph", () => {
  const flat = { height: 0, transform: [0, 0, 0, 0, 0, 0] };
  assert.equal(textOf(piece("a", 0, 0, { ...flat, ...END }), piece("b", 0, 0, flat)), "a\nb");
});
