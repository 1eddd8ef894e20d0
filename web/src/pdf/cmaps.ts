// Tables from the codes of a font to characters, and how many bytes a code has (ISO 32000-1, 9.7.5 and 9.10.3).
import { character } from "./glyphs";
import { Reader, type Value, Word } from "./syntax";

const MOST_CODES = 1 << 17;

export interface CodeTable {
  /** Characters by code. */
  characters: Map<number, string>;
  /** Ranges of codes, with the bytes that a code in them has. */
  ranges: { bytes: number; low: number; high: number }[];
}

export function readTable(bytes: Uint8Array): CodeTable {
  const reader = new Reader(bytes);
  const table: CodeTable = { characters: new Map(), ranges: [] };
  let values: Value[] = [];
  for (let next = reader.next(); next !== undefined; next = reader.next()) {
    if (!(next instanceof Word)) {
      values.push(next);
      continue;
    }
    if (next.text === "endcodespacerange") addRanges(table, values);
    if (next.text === "endbfchar") addCharacters(table, values);
    if (next.text === "endbfrange") addRuns(table, values);
    values = [];
  }
  return table;
}

function addRanges({ ranges }: CodeTable, values: Value[]): void {
  for (let at = 0; at + 1 < values.length; at += 2) {
    const [low, high] = [values[at], values[at + 1]];
    if (low instanceof Uint8Array && high instanceof Uint8Array && low.length && low.length <= 4)
      ranges.push({ bytes: low.length, low: codeOf(low), high: codeOf(high) });
  }
}

function addCharacters({ characters }: CodeTable, values: Value[]): void {
  for (let at = 0; at + 1 < values.length && characters.size < MOST_CODES; at += 2) {
    const [code, text] = [values[at], values[at + 1]];
    if (code instanceof Uint8Array && text instanceof Uint8Array) characters.set(codeOf(code), utf16(text));
  }
}

function addRuns({ characters }: CodeTable, values: Value[]): void {
  for (let at = 0; at + 2 < values.length; at += 3) {
    const [low, high, target] = [values[at], values[at + 1], values[at + 2]];
    if (!(low instanceof Uint8Array && high instanceof Uint8Array)) continue;
    const first = codeOf(low);
    const last = Math.min(codeOf(high), first + 0xffff);
    for (let code = first; code <= last && characters.size < MOST_CODES; code++) {
      const each = Array.isArray(target) ? target[code - first] : target;
      if (!(each instanceof Uint8Array)) continue;
      const text = utf16(each);
      const end = text.codePointAt(text.length - 1) ?? 0;
      const step = Array.isArray(target) ? 0 : code - first;
      characters.set(code, step ? text.slice(0, -1) + character(end + step) : text);
    }
  }
}

export function codeOf(bytes: Uint8Array): number {
  return bytes.reduce((code, byte) => code * 256 + byte, 0);
}

export function utf16(bytes: Uint8Array): string {
  return new TextDecoder("utf-16be").decode(bytes.length === 1 ? new Uint8Array([0, bytes[0]!]) : bytes);
}
