// The objects that PDF files and the contents of their pages are written in (ISO 32000-1, 7.2 and 7.3).

const DEEPEST = 100;

export class Name {
  constructor(readonly text: string) {}
}

/** An operator or keyword: what is neither a name nor a value. */
export class Word {
  constructor(readonly text: string) {}
}

export class Ref {
  constructor(readonly number: number) {}
}

export type Dict = Map<string, Value>;

export class Stream {
  constructor(
    readonly dict: Dict,
    readonly bytes: Uint8Array,
  ) {}
}

/** Texts of a file are bytes; what characters they are depends on where they stand. */
export type Value = null | boolean | number | Uint8Array | Name | Ref | Stream | Value[] | Dict;

/** A sentence that says what is wrong with a file. */
export class PdfError extends Error {}

const SPACES = new Set([0, 9, 10, 12, 13, 32]);
const DELIMITERS = new Set([...'()<>[]{}/%'].map((character) => character.charCodeAt(0)));
const ESCAPES: Record<string, number> = { n: 10, r: 13, t: 9, b: 8, f: 12 };

export class Reader {
  constructor(
    readonly bytes: Uint8Array,
    public at = 0,
  ) {}

  /** Reads a value or a word; undefined at the end. */
  next(depth = 0): Value | Word | undefined {
    this.skipSpaces();
    const { bytes } = this;
    if (this.at >= bytes.length) return undefined;
    if (depth > DEEPEST) throw new PdfError("its objects are nested too deeply");
    const character = String.fromCharCode(bytes[this.at++]!);
    if (character === "/") return new Name(this.name());
    if (character === "(") return this.text();
    if (character === "[") return this.until("]", depth);
    if (character === "<" && bytes[this.at] !== 0x3c) return this.hexadecimal();
    if (character === "<") {
      this.at++;
      return dictOf(this.until(">>", depth));
    }
    if (character === ">" && bytes[this.at] === 0x3e) {
      this.at++;
      return new Word(">>");
    }
    if (DELIMITERS.has(bytes[this.at - 1]!)) return new Word(character);
    this.at--;
    return valueOf(this.regular());
  }

  /** Reads a value that has to be a number. */
  number(): number {
    const found = this.next();
    if (typeof found !== "number") throw new PdfError("a number is missing");
    return found;
  }

  skipSpaces(): void {
    const { bytes } = this;
    for (; this.at < bytes.length; this.at++) {
      if (bytes[this.at] === 0x25) while (this.at < bytes.length && bytes[this.at] !== 10 && bytes[this.at] !== 13) this.at++;
      else if (!SPACES.has(bytes[this.at]!)) return;
    }
  }

  private regular(): string {
    const from = this.at;
    const { bytes } = this;
    while (this.at < bytes.length && !SPACES.has(bytes[this.at]!) && !DELIMITERS.has(bytes[this.at]!)) this.at++;
    return latin(bytes.subarray(from, this.at));
  }

  private name(): string {
    return this.regular().replace(/#([0-9a-fA-F]{2})/g, (_, code: string) => String.fromCharCode(parseInt(code, 16)));
  }

  private until(end: string, depth: number): Value[] {
    const found: Value[] = [];
    while (true) {
      const next = this.next(depth + 1);
      if (next === undefined || (next instanceof Word && next.text === end)) return found;
      if (next instanceof Word && next.text === "R") reference(found);
      else if (!(next instanceof Word)) found.push(next);
    }
  }

  private text(): Uint8Array {
    const found: number[] = [];
    for (let open = 1; this.at < this.bytes.length; ) {
      const byte = this.bytes[this.at++]!;
      if (byte === 0x28) open++;
      if (byte === 0x29 && --open === 0) break;
      if (byte !== 0x5c) found.push(byte);
      else found.push(...this.escape());
    }
    return new Uint8Array(found);
  }

  private escape(): number[] {
    const byte = this.bytes[this.at++] ?? 0;
    if (byte === 13 && this.bytes[this.at] === 10) this.at++;
    if (byte === 10 || byte === 13) return [];
    const digits = /^[0-7]{1,3}/.exec(latin(this.bytes.subarray(this.at - 1, this.at + 2)))?.[0];
    if (digits === undefined) return [ESCAPES[String.fromCharCode(byte)] ?? byte];
    this.at += digits.length - 1;
    return [parseInt(digits, 8) & 255];
  }

  private hexadecimal(): Uint8Array {
    const from = this.at;
    const end = this.bytes.indexOf(0x3e, from);
    this.at = end < 0 ? this.bytes.length : end + 1;
    return hexBytes(latin(this.bytes.subarray(from, this.at)));
  }
}

export function hexBytes(text: string): Uint8Array {
  const digits = text.replace(/[^0-9a-fA-F]/g, "");
  return Uint8Array.from({ length: Math.ceil(digits.length / 2) }, (_, place) =>
    parseInt(digits.slice(2 * place, 2 * place + 2).padEnd(2, "0"), 16),
  );
}

/** Bytes as characters of the same numbers. */
export function latin(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return text;
}

/** Puts a reference in the place of the two numbers at the end of a list. */
export function reference(values: (Value | Word)[]): void {
  const [number] = values.splice(-2);
  values.push(typeof number === "number" ? new Ref(number) : null);
}

function dictOf(values: Value[]): Dict {
  const found: Dict = new Map();
  for (let at = 0; at + 1 < values.length; at += 2) {
    const name = values[at];
    if (name instanceof Name) found.set(name.text, values[at + 1]!);
  }
  return found;
}

function valueOf(text: string): Value | Word {
  if (/^[+-]*(\d+\.?\d*|\.\d+)/.test(text)) return Number.parseFloat(text.replace(/^[+-]*(?=[+-])|^\+/, ""));
  if (text === "true" || text === "false") return text === "true";
  return text === "null" ? null : new Word(text);
}
