// Reads the conversations of a JSON file one by one. Files may be larger than the longest text of a browser.

const LARGEST_ELEMENT = 64 << 20;
/** Milliseconds of work after which the page gets time to respond. */
const SLICE = 12;

const [QUOTE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN, CLOSE, COMMA] = [0x22, 0x5c, 0x5b, 0x5d, 0x7b, 0x7d, 0x2c];

/** A file that is not what its reader expects. The message says what is wrong with it, without its name. */
export class BadFile extends Error {}

export const NO_EXPORT =
  "is not an export of conversations that this page reads. It reads its own, and those of ChatGPT and Open WebUI.";

/** Gives the page time to respond if the work has lasted for a while. */
export class Pauses {
  private since = performance.now();

  async take(): Promise<void> {
    if (performance.now() - this.since < SLICE) return;
    await new Promise((resume) => setTimeout(resume));
    this.since = performance.now();
  }
}

/**
 * The elements of the list in a JSON file: of the file itself, or of the first list of objects in its object.
 * An object without such a list is the only element. Throws BadFile if the file is not whole JSON.
 */
export async function* elements(bytes: ReadableStream<Uint8Array>): AsyncGenerator<unknown> {
  const pauses = new Pauses();
  const cutter = new Cutter();
  const reader = bytes.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      for (const found of cutter.cut(read.value)) {
        yield parsed(found);
        await pauses.take();
      }
      await pauses.take();
    }
    const rest = cutter.end();
    if (rest) yield parsed(rest);
  } finally {
    void reader.cancel().catch(() => {});
  }
}

function parsed(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes)) as unknown;
  } catch {
    throw new BadFile("is not valid JSON. Export or download it again.");
  }
}

/** Cuts the bytes of a JSON text into the elements of its list. ASCII characters never are parts of others in UTF-8. */
class Cutter {
  private pieces: Uint8Array[] = [];
  private size = 0;
  private depth = 0;
  /** The depth of the list's elements; 0 until the list is found. */
  private inner = 0;
  private isText = false;
  private isEscaped = false;
  private hasBegun = false;
  private isOver = false;

  *cut(chunk: Uint8Array): Generator<Uint8Array> {
    let begin = 0;
    for (let at = 0; at < chunk.length; at++) {
      if (this.isText) {
        at = this.endOfText(chunk, at);
        continue;
      }
      const byte = chunk[at]!;
      if (byte === QUOTE) this.isText = true;
      else if (byte === OPEN_LIST || byte === OPEN) {
        const isList = byte === OPEN_LIST && !this.inner && this.depth < 2 && this.isWanted(chunk.subarray(begin, at));
        this.depth++;
        if (isList) {
          this.inner = this.depth;
          this.drop();
          begin = at + 1;
        }
      } else if (byte === CLOSE_LIST || byte === CLOSE) {
        if (this.inner && this.depth === this.inner) {
          yield* this.take(chunk.subarray(begin, at));
          this.isOver = true;
          this.inner = Infinity;
        }
        this.depth--;
      } else if (byte === COMMA && this.depth === this.inner) {
        yield* this.take(chunk.subarray(begin, at));
        begin = at + 1;
      }
      // Bytes of a byte order mark do not count.
      this.hasBegun ||= byte > 0x20 && byte < 0x80;
    }
    if (!this.isOver) this.keep(chunk.subarray(begin));
  }

  /** The place of the quote that ends a text, or the end of the chunk. */
  private endOfText(chunk: Uint8Array, begin: number): number {
    for (let from = begin; ; ) {
      const found = chunk.indexOf(QUOTE, from);
      const end = found < 0 ? chunk.length : found;
      let slashes = 0;
      while (end - slashes > begin && chunk[end - slashes - 1] === BACKSLASH) slashes++;
      const isWholeChunk = end - slashes === begin && this.isEscaped;
      const isEscaped = (slashes + (isWholeChunk ? 1 : 0)) % 2 === 1;
      if (found < 0) {
        this.isEscaped = isEscaped;
        return end;
      }
      if (!isEscaped) {
        this.isText = false;
        this.isEscaped = false;
        return end;
      }
      from = end + 1;
    }
  }

  /** The whole text if no list was found. */
  end(): Uint8Array | null {
    if (this.isOver && this.depth === 0) return null;
    if (this.inner) throw new BadFile("ends in the middle. Export or download it again.");
    if (!this.hasBegun) throw new BadFile("is empty.");
    return this.joined();
  }

  /** A list that is the file, or the value of `conversations` in the file's object. */
  private isWanted(before: Uint8Array): boolean {
    if (this.depth === 0) return !this.hasBegun;
    const piece = this.pieces.length ? this.joined(before) : before;
    return /"conversations"\s*:\s*$/.test(new TextDecoder().decode(piece.slice(-200)));
  }

  private *take(last: Uint8Array): Generator<Uint8Array> {
    const found = this.joined(last);
    this.drop();
    if (found.some((byte) => byte > 0x20)) yield found;
  }

  private keep(piece: Uint8Array): void {
    this.size += piece.length;
    if (this.size > LARGEST_ELEMENT)
      throw new BadFile(this.inner ? `has a conversation of more than ${LARGEST_ELEMENT >> 20} MiB.` : NO_EXPORT);
    this.pieces.push(piece.slice());
  }

  private joined(last?: Uint8Array): Uint8Array {
    if (!this.pieces.length && last) return last;
    const all = new Uint8Array(this.size + (last?.length ?? 0));
    let at = 0;
    for (const piece of last ? [...this.pieces, last] : this.pieces) {
      all.set(piece, at);
      at += piece.length;
    }
    return all;
  }

  private drop(): void {
    this.pieces = [];
    this.size = 0;
  }
}
