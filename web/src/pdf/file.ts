// The objects of a file by their numbers: the table that says where they are, and the file without it (7.5).
import { unpack } from "./filters";
import { type Dict, latin, Name, PdfError, Reader, Ref, reference, Stream, type Value, Word } from "./syntax";

const MOST_OBJECTS = 1 << 20;
const MOST_STEPS = 50;

/** An object at an offset of the file, or one of those that a stream holds. */
type Place = { at: number } | { holder: number; index: number };

export class PdfFile {
  private places = new Map<number, Place>();
  private readonly read = new Map<number, Value>();
  private readonly held = new Map<number, Promise<Value[]>>();
  isMended = false;
  trailer: Dict = new Map();
  /** Pages of a file that was mended, whose tree may be gone. */
  readonly loosePages: Dict[] = [];

  private constructor(private readonly bytes: Uint8Array) {}

  /** Opens a file. Throws PdfError for what is none. */
  static async open(bytes: Uint8Array): Promise<PdfFile> {
    const begin = latin(bytes.subarray(0, 1024)).indexOf("%PDF-");
    if (begin < 0) throw new PdfError("it does not begin as a PDF does");
    const file = new PdfFile(bytes.subarray(begin));
    try {
      await file.readTables();
      if (!file.trailer.has("Encrypt") && !(await file.pages()).size) throw new PdfError("it has no pages");
    } catch {
      await file.mend();
    }
    return file;
  }

  /** The root of its tree of pages. */
  async pages(): Promise<Dict> {
    return this.dict((await this.dict(this.trailer.get("Root"))).get("Pages"));
  }

  /** The value that a reference leads to, or the value itself. */
  async get(value: Value | undefined): Promise<Value> {
    for (let step = 0; value instanceof Ref; step++) {
      if (step > MOST_STEPS) return null;
      value = await this.object(value.number);
    }
    return value ?? null;
  }

  async dict(value: Value | undefined): Promise<Dict> {
    const found = await this.get(value);
    return found instanceof Map ? found : found instanceof Stream ? found.dict : new Map();
  }

  async list(value: Value | undefined): Promise<Value[]> {
    const found = await this.get(value);
    return Array.isArray(found) ? found : found === null ? [] : [found];
  }

  async number(value: Value | undefined, usual = 0): Promise<number> {
    const found = await this.get(value);
    return typeof found === "number" ? found : usual;
  }

  async name(value: Value | undefined): Promise<string> {
    const found = await this.get(value);
    return found instanceof Name ? found.text : "";
  }

  /** The unpacked bytes of a stream; none where it is a picture, or no stream. */
  async data(value: Value | undefined): Promise<Uint8Array> {
    const found = await this.get(value);
    if (!(found instanceof Stream)) return new Uint8Array();
    const { dict, bytes } = found;
    const filters = await this.list(dict.get("Filter") ?? dict.get("F"));
    const parameters = await this.list(dict.get("DecodeParms") ?? dict.get("DP"));
    const all = (values: Value[]) => Promise.all(values.map((each) => this.get(each)));
    return (await unpack(bytes, await all(filters), await all(parameters))) ?? new Uint8Array();
  }

  private async object(number: number): Promise<Value> {
    const known = this.read.get(number);
    if (known !== undefined) return known;
    const place = this.places.get(number);
    if (!place) return null;
    this.read.set(number, null); // a length that leads to its own object
    try {
      const isOwn = "at" in place;
      const found = isOwn ? await this.objectAt(place.at, number) : ((await this.holding(place.holder))[place.index] ?? null);
      this.read.set(number, found);
      return found;
    } catch (error) {
      if (!(error instanceof PdfError)) throw error;
      if (this.isMended) return null;
      await this.mend();
      return this.object(number);
    }
  }

  private async objectAt(at: number, number?: number): Promise<Value> {
    const reader = new Reader(this.bytes, at);
    const found = reader.number();
    reader.number();
    const word = reader.next();
    if (!(word instanceof Word && word.text === "obj") || (number !== undefined && found !== number))
      throw new PdfError("an object is not where it should be");
    const values: Value[] = [];
    while (true) {
      const next = reader.next();
      if (next instanceof Word && next.text === "R") reference(values);
      else if (next instanceof Word && next.text === "stream" && values[0] instanceof Map) return this.stream(values[0], reader);
      else if (next === undefined || next instanceof Word) return values[0] ?? null;
      else values.push(next);
    }
  }

  private async stream(dict: Dict, reader: Reader): Promise<Stream> {
    const { bytes } = this;
    let from = reader.at;
    if (bytes[from] === 13) from++;
    if (bytes[from] === 10) from++;
    const length = await this.number(dict.get("Length"), -1);
    const behind = new Reader(bytes, from + length);
    behind.skipSpaces();
    if (length >= 0 && latin(bytes.subarray(behind.at, behind.at + 9)) === "endstream")
      return new Stream(dict, bytes.subarray(from, from + length));
    const end = indexOf(bytes, "endstream", from);
    return new Stream(dict, bytes.subarray(from, end < 0 ? bytes.length : end));
  }

  /** The objects that a stream holds, in their order there. */
  private holding(number: number): Promise<Value[]> {
    const read = async () => {
      const stream = await this.object(number);
      const { dict } = stream instanceof Stream ? stream : { dict: new Map<string, Value>() };
      const reader = new Reader(await this.data(stream));
      const [count, first] = [await this.number(dict.get("N")), await this.number(dict.get("First"))];
      const offsets: number[] = [];
      for (let index = 0; index < Math.min(count, MOST_OBJECTS); index++) {
        const own = reader.number();
        offsets.push(reader.number());
        if (this.isMended) this.places.set(own, { holder: number, index });
      }
      return offsets.map((offset) => {
        const found = new Reader(reader.bytes, first + offset).next();
        return found === undefined || found instanceof Word ? null : found;
      });
    };
    let found = this.held.get(number);
    if (!found) this.held.set(number, (found = read()));
    return found;
  }

  private async readTables(): Promise<void> {
    const end = latin(this.bytes.subarray(-2048));
    const seen = new Set<number>();
    const waiting = [Number(/startxref\s+(\d+)(?![\s\S]*startxref)/.exec(end)?.[1] ?? NaN)];
    for (let at = waiting.shift(); at !== undefined; at = waiting.shift()) {
      if (seen.has(at)) continue;
      seen.add(at);
      const trailer = await this.readTable(at);
      for (const [name, value] of trailer) if (!this.trailer.has(name)) this.trailer.set(name, value);
      for (const name of ["XRefStm", "Prev"]) {
        const next = trailer.get(name);
        if (typeof next === "number") waiting.push(next);
      }
    }
  }

  private async readTable(at: number): Promise<Dict> {
    const reader = new Reader(this.bytes, at);
    const word = reader.next();
    if (!(word instanceof Word)) return this.readTableStream(at);
    while (true) {
      const first = reader.next();
      if (typeof first !== "number") break;
      const count = Math.min(reader.number(), MOST_OBJECTS);
      for (let number = first; number < first + count; number++) {
        const offset = reader.number();
        reader.number();
        const kind = reader.next();
        if (kind instanceof Word && kind.text === "n") this.note(number, { at: offset });
      }
    }
    const trailer = reader.next();
    if (!(trailer instanceof Map)) throw new PdfError("its table of objects has no end");
    return trailer;
  }

  private async readTableStream(at: number): Promise<Dict> {
    const stream = await this.objectAt(at);
    if (!(stream instanceof Stream)) throw new PdfError("its table of objects is missing");
    const widths = (await this.list(stream.dict.get("W"))).map(Number);
    const index = (await this.list(stream.dict.get("Index") ?? [0, stream.dict.get("Size") ?? 0])).map(Number);
    const data = await this.data(stream);
    let place = 0;
    const field = (width: number, usual: number) => {
      let value = width ? 0 : usual;
      for (const end = place + width; place < end; place++) value = value * 256 + (data[place] ?? 0);
      return value;
    };
    const size = widths.reduce((sum, width) => sum + width, 0);
    for (let pair = 0; pair + 1 < index.length; pair += 2)
      for (let number = index[pair]!; number < index[pair]! + index[pair + 1]! && size > 0 && place + size <= data.length; number++) {
        const [kind, second, third] = [field(widths[0]!, 1), field(widths[1]!, 0), field(widths[2]!, 0)];
        if (kind === 1) this.note(number, { at: second });
        if (kind === 2) this.note(number, { holder: second, index: third });
      }
    return stream.dict;
  }

  private note(number: number, place: Place): void {
    if (!this.places.has(number) && this.places.size < MOST_OBJECTS) this.places.set(number, place);
  }

  /** Looks for the objects of a file whose table is missing or wrong. The last one of a number counts. */
  private async mend(): Promise<void> {
    this.places = new Map();
    this.read.clear();
    this.held.clear();
    this.isMended = true;
    const text = latin(this.bytes);
    for (const match of text.matchAll(/(?<![\d.])(\d{1,9})\s+\d{1,5}\s+obj\b/g))
      if (this.places.size < MOST_OBJECTS) this.places.set(Number(match[1]), { at: match.index });
    const trailers: Dict[] = [];
    for (const match of text.matchAll(/\btrailer\b/g)) {
      const found = new Reader(this.bytes, match.index + 7).next();
      if (found instanceof Map) trailers.push(found);
    }
    for (const number of [...this.places.keys()]) {
      const found = await this.object(number);
      const dict = found instanceof Stream ? found.dict : found;
      const type = dict instanceof Map ? await this.name(dict.get("Type")) : "";
      if (type === "ObjStm") await this.holding(number).catch(() => []);
      if (type === "Page") this.loosePages.push(dict as Dict);
      if (type === "XRef") trailers.push(dict as Dict);
      if (type === "Catalog") trailers.unshift(new Map([["Root", new Ref(number)]]));
    }
    this.trailer = new Map(trailers.flatMap((trailer) => [...trailer]));
  }
}

function indexOf(bytes: Uint8Array, text: string, from: number): number {
  for (let at = bytes.indexOf(text.charCodeAt(0), from); at >= 0; at = bytes.indexOf(text.charCodeAt(0), at + 1))
    if (latin(bytes.subarray(at, at + text.length)) === text) return at;
  return -1;
}
