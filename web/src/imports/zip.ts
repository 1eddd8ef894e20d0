// Reads files of a ZIP archive, each when it is wanted. The archive itself stays on disk.
import { BadFile } from "./elements";

const END = 0x06054b50;
const END_64 = 0x06064b50;
const LOCATOR_64 = 0x07064b50;
const ENTRY = 0x02014b50;
const STORED = 0;
const DEFLATED = 8;
/** The size of the end of a ZIP archive, with the longest comment and the places of large archives. */
const LONGEST_END = 65_557 + 20;
const LARGEST_DIRECTORY = 64 << 20;

/** The size of a file, its size in the archive, and its place there. */
type Fields = [size: number, packed: number, at: number];

export interface Entry {
  name: string;
  size: number;
  open: () => Promise<ReadableStream<Uint8Array>>;
}

export async function isZip(file: Blob): Promise<boolean> {
  const head = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  return head[0] === 0x50 && head[1] === 0x4b && (head[2] === 3 || head[2] === 5);
}

/** The files of an archive. Throws BadFile if its directory cannot be read. */
export async function entriesOf(file: Blob): Promise<Entry[]> {
  const { at, size } = await directoryOf(file);
  if (size > LARGEST_DIRECTORY || at + size > file.size) throw damaged();
  const view = await viewOf(file, at, size);
  const found: Entry[] = [];
  for (let place = 0; place + 46 <= view.byteLength && view.getUint32(place, true) === ENTRY; ) {
    const [nameLength, extraLength, commentLength] = [28, 30, 32].map((field) => view.getUint16(place + field, true));
    const next = place + 46 + nameLength! + extraLength! + commentLength!;
    if (next > view.byteLength) throw damaged();
    found.push(entryAt(file, view, place, nameLength!, extraLength!));
    place = next;
  }
  return found;
}

function entryAt(file: Blob, view: DataView, place: number, nameLength: number, extraLength: number): Entry {
  const method = view.getUint16(place + 10, true);
  const name = new TextDecoder().decode(new Uint8Array(view.buffer, view.byteOffset + place + 46, nameLength));
  const fields = [24, 20, 42].map((field) => view.getUint32(place + field, true)) as Fields;
  const [size, packed, at] = largeFields(fields, view, place + 46 + nameLength, extraLength);
  const isEncrypted = (view.getUint16(place + 8, true) & 1) === 1;
  return { name, size, open: () => opened(file, { name, at, packed, method, isEncrypted }) };
}

/** The sizes and the place of a file; archives of more than 4 GiB have them in an extra field. */
function largeFields(fields: Fields, view: DataView, begin: number, length: number): Fields {
  for (let at = begin; at + 4 <= begin + length; at += 4 + view.getUint16(at + 2, true)) {
    if (view.getUint16(at, true) !== 1) continue;
    let from = at + 4;
    return fields.map((field) => {
      if (field !== 0xffffffff) return field;
      if (from + 8 > begin + length) throw damaged();
      from += 8;
      return Number(view.getBigUint64(from - 8, true));
    }) as Fields;
  }
  return fields;
}

interface Packed {
  name: string;
  at: number;
  packed: number;
  method: number;
  isEncrypted: boolean;
}

async function opened(file: Blob, { name, at, packed, method, isEncrypted }: Packed): Promise<ReadableStream<Uint8Array>> {
  if (isEncrypted) throw new BadFile("is encrypted. Unpack it, and import the files in it.");
  if (method !== STORED && method !== DEFLATED)
    throw new BadFile(`packs ${name} in a way that is unknown here. Unpack it, and import the files in it.`);
  if (at + 30 > file.size) throw damaged();
  const head = await viewOf(file, at, 30);
  const begin = at + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const bytes = file.slice(begin, begin + packed).stream() as ReadableStream<Uint8Array<ArrayBuffer>>;
  return method === STORED ? bytes : bytes.pipeThrough(new DecompressionStream("deflate-raw"));
}

/** All bytes of a file, or null if it has more than `largest` ones, whatever the directory says. */
export async function bytesOf(entry: Entry, largest: number): Promise<Uint8Array | null> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = (await entry.open()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    size += read.value.length;
    if (size > largest) {
      void reader.cancel().catch(() => {});
      return null;
    }
    pieces.push(read.value);
  }
  return new Uint8Array(await new Blob(pieces as BlobPart[]).arrayBuffer());
}

async function directoryOf(file: Blob): Promise<{ at: number; size: number }> {
  const begin = Math.max(0, file.size - LONGEST_END);
  const view = await viewOf(file, begin, file.size - begin);
  for (let place = view.byteLength - 22; place >= 0; place--) {
    if (view.getUint32(place, true) !== END) continue;
    const isLarge = view.getUint32(place + 16, true) === 0xffffffff || view.getUint16(place + 10, true) === 0xffff;
    if (isLarge && place >= 20 && view.getUint32(place - 20, true) === LOCATOR_64) {
      const end = await viewOf(file, Number(view.getBigUint64(place - 12, true)), 56);
      if (end.byteLength < 56 || end.getUint32(0, true) !== END_64) throw damaged();
      return { size: Number(end.getBigUint64(40, true)), at: Number(end.getBigUint64(48, true)) };
    }
    return { size: view.getUint32(place + 12, true), at: view.getUint32(place + 16, true) };
  }
  throw damaged();
}

async function viewOf(file: Blob, at: number, size: number): Promise<DataView> {
  return new DataView(await file.slice(at, at + size).arrayBuffer());
}

function damaged(): BadFile {
  return new BadFile("is a damaged ZIP archive. Download it again.");
}
