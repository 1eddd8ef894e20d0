// Parses Markdown into a tree of tokens. HTML stays text: no code here or later turns text into markup.
import { Marked, type Token, type TokenizerExtension, type Tokens } from "marked";

const DEEPEST = 12;

export interface MathToken {
  type: "math";
  raw: string;
  tex: string;
  isBlock: boolean;
}

const blockMath: TokenizerExtension = {
  name: "blockMath",
  level: "block",
  start: (text) => text.search(/\$\$|\\\[/),
  tokenizer(text) {
    const found = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])(?:\n|$)/.exec(text);
    return found ? math(found, true) : undefined;
  },
};

const inlineMath: TokenizerExtension = {
  name: "inlineMath",
  level: "inline",
  start: (text) => text.search(/\$|\\\(|\\\[/),
  tokenizer(text) {
    const block = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])/.exec(text);
    if (block) return math(block, true);
    // A price is not a formula: a formula has no space inside its dollars, and no digit follows it.
    const found = /^(?:\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)|\\\(([\s\S]+?)\\\))/.exec(text);
    return found ? math(found, false) : undefined;
  },
};

const marked = new Marked({ gfm: true, breaks: false, extensions: [blockMath, inlineMath] as never });

export function parse(text: string): Token[] {
  try {
    return marked.lexer(flattened(text));
  } catch {
    return [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text }] } as Tokens.Paragraph];
  }
}

function math(found: RegExpExecArray, isBlock: boolean): MathToken & Tokens.Generic {
  return { type: "math", raw: found[0], tex: (found[1] ?? found[2] ?? "").trim(), isBlock };
}

/** Limits the depth of quotes and brackets, since deeper nesting would only cost time. */
function flattened(text: string): string {
  return text
    .replace(/^([ \t]*(?:>[ \t]?){1,})/gm, (start) => (start.split(">").length > DEEPEST ? "> ".repeat(DEEPEST) : start))
    .replace(/^(?:[ \t]*(?:[-*+]|\d+[.)])[ \t]+){13,}/gm, (start) => `- \\${start.trim()} `)
    .replace(/([[(*_~`])\1{63,}/g, (run) => run.slice(0, 64));
}
