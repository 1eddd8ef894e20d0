// Fonts: which characters the bytes of a text are, and how wide (ISO 32000-1, 9.5 to 9.8).
import { type CodeTable, codeOf, readTable, utf16 } from "./cmaps";
import type { PdfFile } from "./file";
import { charactersOf, encoding } from "./glyphs";
import { type Dict, latin, Name, Stream, type Value } from "./syntax";

/** A shape of a text: its characters, and its width in sizes of the font. */
export interface Glyph {
  characters: string;
  width: number;
  /** Whether spacing of words applies to it: it is the one byte 32. */
  isSpace: boolean;
}

export type Font = (bytes: Uint8Array) => Glyph[];

/** Encodings of fonts for Chinese, Japanese and Korean, and what browsers call them. */
const DECODERS: [RegExp, string][] = [
  [/^Uni.*(UCS2|UTF16)/, "utf-16be"],
  [/^(GBK|GB-|GBpc|GBKp)/, "gbk"],
  [/RKSJ/, "shift_jis"],
  [/^(B5|ETen|HKscs)/, "big5"],
  [/^KSC/, "euc-kr"],
  [/^EUC-/, "euc-jp"],
];

export async function readFont(file: PdfFile, font: Dict): Promise<Font> {
  const toUnicode = await file.get(font.get("ToUnicode"));
  const table = toUnicode instanceof Stream ? readTable(await file.data(toUnicode)) : undefined;
  return (await file.name(font.get("Subtype"))) === "Type0" ? composite(file, font, table) : simple(file, font, table);
}

async function simple(file: PdfFile, font: Dict, table: CodeTable | undefined): Promise<Font> {
  const descriptor = await file.dict(font.get("FontDescriptor"));
  const letters = await lettersOf(file, font, descriptor);
  const first = await file.number(font.get("FirstChar"));
  const widths = await file.list(font.get("Widths"));
  const missing = await file.number(descriptor.get("MissingWidth"));
  const matrix = await file.list(font.get("FontMatrix"));
  const scale = typeof matrix[0] === "number" ? Math.abs(matrix[0]) : 0.001;
  const isFixed = (await file.name(font.get("BaseFont"))).includes("Courier");
  return (bytes) =>
    Array.from(bytes, (code) => {
      const characters = table?.characters.get(code) ?? letters[code] ?? "";
      const width = widths[code - first];
      const known = typeof width === "number" ? width : widths.length ? missing : undefined;
      return { characters, width: known === undefined ? usualWidth(characters, isFixed) : known * scale, isSpace: code === 32 };
    });
}

/** The characters of the 256 codes of a font: an encoding that it begins with, and its differences from that. */
async function lettersOf(file: PdfFile, font: Dict, descriptor: Dict): Promise<string[]> {
  const value = await file.get(font.get("Encoding"));
  const dict = value instanceof Map ? value : new Map<string, Value>();
  const base = value instanceof Name ? value.text : await file.name(dict.get("BaseEncoding"));
  const isTrueType = (await file.name(font.get("Subtype"))) === "TrueType";
  const letters = encoding(base || (isTrueType ? "" : "StandardEncoding"));
  if (!base) {
    // A font of Type 1 says before its shapes which codes they have.
    const program = latin((await file.data(descriptor.get("FontFile"))).subarray(0, 1 << 15));
    for (const [, code, name] of program.matchAll(/dup\s+(\d{1,3})\s*\/(\S+)\s+put/g)) letters[Number(code)] = charactersOf(name!);
  }
  let code = 0;
  for (const each of await file.list(dict.get("Differences"))) {
    if (typeof each === "number") code = each;
    else if (each instanceof Name) letters[code++] = charactersOf(each.text);
  }
  return letters;
}

async function composite(file: PdfFile, font: Dict, table: CodeTable | undefined): Promise<Font> {
  const [descendant] = await file.list(font.get("DescendantFonts"));
  const inner = await file.dict(descendant);
  const widths = await readWidths(file, inner);
  const usual = await file.number(inner.get("DW"), 1000);
  const value = await file.get(font.get("Encoding"));
  const name = value instanceof Name ? value.text : "";
  const ranges = value instanceof Stream ? readTable(await file.data(value)).ranges : [];
  const label = DECODERS.find(([pattern]) => pattern.test(name))?.[1];
  const decoder = label ? new TextDecoder(label) : undefined;
  const isMixed = label !== undefined && label !== "utf-16be";
  return (bytes) => {
    const found: Glyph[] = [];
    for (let at = 0; at < bytes.length; ) {
      const length = isMixed ? (bytes[at]! < 0x81 ? 1 : 2) : lengthAt(bytes, at, ranges);
      const own = bytes.subarray(at, at + length);
      const code = codeOf(own);
      at += length;
      const characters = table?.characters.get(code) ?? (label === "utf-16be" ? utf16(own) : (decoder?.decode(own) ?? ""));
      found.push({ characters, width: (widths.get(code) ?? usual) / 1000, isSpace: length === 1 && code === 32 });
    }
    return found;
  };
}

function lengthAt(bytes: Uint8Array, at: number, ranges: CodeTable["ranges"]): number {
  for (const { bytes: length, low, high } of ranges) {
    const code = codeOf(bytes.subarray(at, at + length));
    if (at + length <= bytes.length && code >= low && code <= high) return length;
  }
  return ranges.length ? Math.min(...ranges.map((range) => range.bytes)) : 2;
}

/** Widths by code, as `W` lists them: a code with a list of widths, or two codes with one width. */
async function readWidths(file: PdfFile, font: Dict): Promise<Map<number, number>> {
  const found = new Map<number, number>();
  const values = await Promise.all((await file.list(font.get("W"))).map((each) => file.get(each)));
  for (let at = 0; at + 1 < values.length; ) {
    const [first, second] = [Number(values[at]), values[at + 1]];
    if (Array.isArray(second)) {
      second.forEach((width, place) => found.set(first + place, Number(width)));
      at += 2;
    } else {
      const last = Math.min(Number(second), first + 0xffff);
      for (let code = first; code <= last && found.size <= 0x20000; code++) found.set(code, Number(values[at + 2]));
      at += 3;
    }
  }
  return found;
}

/** About how wide characters are in fonts that every viewer has, and whose widths files leave out. */
function usualWidth(characters: string, isFixed: boolean): number {
  if (isFixed) return 0.6;
  if (/^[\sijltfrI.,:;'!|()[\]-]/.test(characters)) return 0.28;
  return /^[mwMW@%]/.test(characters) ? 0.83 : /^[A-Z]/.test(characters) ? 0.68 : 0.53;
}
