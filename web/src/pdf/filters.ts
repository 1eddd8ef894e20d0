// How the bytes of a stream are packed (ISO 32000-1, 7.4); pictures stay as they are.
import { type Dict, hexBytes, latin, Name, PdfError, type Value } from "./syntax";

const LARGEST = 64 << 20;
const PIECE = 4096;
/** The last bytes go one by one: what a file has behind packed data then costs none of the data. */
const TAIL = 32;

/** Unpacks bytes by the filters of their stream; null where one is for pictures or is not known. */
export async function unpack(bytes: Uint8Array, filters: Value[], parameters: Value[]): Promise<Uint8Array | null> {
  let found: Uint8Array = bytes;
  for (const [place, filter] of filters.entries()) {
    const dict = parameters[place] instanceof Map ? (parameters[place] as Dict) : new Map<string, Value>();
    switch (filter instanceof Name ? filter.text : "") {
      case "FlateDecode":
      case "Fl":
        found = unpredicted(await inflated(found), dict);
        break;
      case "LZWDecode":
      case "LZW":
        found = unpredicted(unLzw(found, dict.get("EarlyChange") !== 0), dict);
        break;
      case "ASCIIHexDecode":
      case "AHx":
        found = hexBytes(latin(found).split(">")[0]!);
        break;
      case "ASCII85Decode":
      case "A85":
        found = un85(latin(found));
        break;
      case "RunLengthDecode":
      case "RL":
        found = unRunLength(found);
        break;
      default:
        return null;
    }
  }
  return found;
}

/** What can be inflated of some bytes, which are not always whole. */
async function inflated(bytes: Uint8Array): Promise<Uint8Array> {
  const unpacking = new DecompressionStream("deflate");
  const writer = unpacking.writable.getWriter();
  const feed = async () => {
    const tail = Math.max(0, bytes.length - TAIL);
    for (let at = 0; at < tail; at += PIECE) await writer.write(bytes.slice(at, Math.min(at + PIECE, tail)));
    for (let at = tail; at < bytes.length; at++) await writer.write(bytes.slice(at, at + 1));
    await writer.close();
  };
  feed().catch(() => {});
  const reader = unpacking.readable.getReader();
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      pieces.push(value);
      size += value.length;
      if (size > LARGEST) break;
    }
  } catch {
    // Damaged, or followed by something else: what came until there is kept.
  }
  reader.cancel().catch(() => {});
  if (size > LARGEST) throw new PdfError(`a part of it unpacks to more than ${LARGEST >> 20} MiB`);
  const found = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    found.set(piece, at);
    at += piece.length;
  }
  return found;
}

/** Adds to each row what was predicted of it, as PNG does. */
function unpredicted(bytes: Uint8Array, parameters: Dict): Uint8Array {
  const number = (name: string, usual: number) => Number(parameters.get(name) ?? usual);
  if (number("Predictor", 1) < 10) return bytes;
  const pixel = Math.max(1, (number("Colors", 1) * number("BitsPerComponent", 8)) >> 3);
  const width = Math.ceil((number("Columns", 1) * number("Colors", 1) * number("BitsPerComponent", 8)) / 8);
  if (!(width > 0)) return bytes;
  const rows = Math.floor(bytes.length / (width + 1));
  const found = new Uint8Array(rows * width);
  for (let row = 0; row < rows; row++) {
    const kind = bytes[row * (width + 1)];
    for (let column = 0; column < width; column++) {
      const at = row * width + column;
      const left = column >= pixel ? found[at - pixel]! : 0;
      const above = row ? found[at - width]! : 0;
      const corner = row && column >= pixel ? found[at - width - pixel]! : 0;
      const guess = [0, left, above, (left + above) >> 1, paeth(left, above, corner)][kind ?? 0] ?? 0;
      found[at] = bytes[row * (width + 1) + 1 + column]! + guess;
    }
  }
  return found;
}

function paeth(left: number, above: number, corner: number): number {
  const guess = left + above - corner;
  const [a, b, c] = [left, above, corner].map((each) => Math.abs(guess - each)) as [number, number, number];
  return a <= b && a <= c ? left : b <= c ? above : corner;
}

function unLzw(bytes: Uint8Array, isEarly: boolean): Uint8Array {
  const found: number[] = [];
  let table: number[][] = [];
  let last: number[] | undefined;
  let [bits, count, width] = [0, 0, 9];
  for (const byte of bytes) {
    bits = (bits << 8) | byte;
    count += 8;
    if (count < width) continue;
    count -= width;
    const code = bits >> count;
    bits &= (1 << count) - 1;
    if (code === 257) break;
    if (code === 256) {
      [table, last, width] = [[], undefined, 9];
      continue;
    }
    const entry = code < 256 ? [code] : (table[code - 258] ?? (last ? [...last, last[0]!] : []));
    if (last && table.length < 3838) table.push([...last, entry[0]!]);
    for (const each of entry) found.push(each);
    if (found.length > LARGEST) throw new PdfError(`a part of it unpacks to more than ${LARGEST >> 20} MiB`);
    last = entry;
    const size = table.length + 258 + (isEarly ? 1 : 0) + 1;
    width = size > 2048 ? 12 : size > 1024 ? 11 : size > 512 ? 10 : 9;
  }
  return new Uint8Array(found);
}

function un85(text: string): Uint8Array {
  const found: number[] = [];
  let group: number[] = [];
  for (const character of text.replace(/^<~/, "").split("~")[0]!.replace(/\s/g, "")) {
    if (character === "z" && !group.length) found.push(0, 0, 0, 0);
    else if (group.push(character.charCodeAt(0) - 33) === 5) {
      found.push(...bytesOf85(group));
      group = [];
    }
  }
  if (group.length > 1) found.push(...bytesOf85([...group, 84, 84, 84, 84].slice(0, 5)).slice(0, group.length - 1));
  return new Uint8Array(found);
}

function bytesOf85(group: number[]): number[] {
  const value = group.reduce((sum, digit) => sum * 85 + digit, 0);
  return [24, 16, 8, 0].map((shift) => Math.floor(value / 2 ** shift) & 255);
}

function unRunLength(bytes: Uint8Array): Uint8Array {
  const found: number[] = [];
  for (let at = 0; at < bytes.length && bytes[at] !== 128 && found.length <= LARGEST; ) {
    const length = bytes[at++]!;
    if (length > 128) {
      for (let count = 257 - length; count > 0; count--) found.push(bytes[at] ?? 0);
      at++;
    } else for (const end = at + length + 1; at < end; at++) found.push(bytes[at] ?? 0);
  }
  return new Uint8Array(found);
}
