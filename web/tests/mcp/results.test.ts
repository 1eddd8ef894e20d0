import assert from "node:assert/strict";
import { test } from "node:test";

import { readResult } from "../../src/mcp/results";
import { visible } from "../../src/mcp/visible";

test("texts, resources and links are lines; images are images", () => {
  const content = [
    { type: "text", text: "sunny" },
    { type: "resource", resource: { text: "of a file", uri: "file:///x" } },
    { type: "resource_link", uri: "http://x.example/" },
    { type: "image", mimeType: "image/png", data: "QUJD" },
  ];
  assert.deepEqual(readResult({ content }), { content: "sunny\nof a file\nhttp://x.example/", images: ["QUJD"] });
});

test("a placeholder names content that the page does not read", () => {
  const content = [null, { type: "audio", mimeType: "audio/wav" }, { type: "image", mimeType: "image/png", data: "no base64!" }];
  const lines = readResult({ content }).content.split("\n");
  assert.deepEqual(
    lines.map((line) => /: (.*)\.\]$/.exec(line)?.[1]),
    ["of no type", "audio, audio/wav", "image, image/png"],
  );
});

test("structured content replaces missing content; a failure comes first", () => {
  assert.equal(readResult({ structuredContent: { degrees: 7 } }).content, '{"degrees":7}');
  assert.equal(readResult({ content: [{ type: "text", text: "a" }], structuredContent: {} }).content, "a");
  assert.equal(readResult({ isError: true, content: [{ type: "text", text: "a" }] }).content, "The tool failed.\na");
  assert.equal(readResult({ content: "none" }).content, "");
});

test("invisible characters and direction marks become visible", () => {
  assert.equal(visible("a\u202eb\u200bc\u3164\u0000"), "a\\u202eb\\u200bc\\u3164\\u0000");
  assert.equal(visible("\u{e0041}"), "\\udb40\\udc41");
  assert.equal(visible("lines\n\tand 日本語, é"), "lines\n\tand 日本語, é");
});
