// The contents of a page: where its texts are drawn (ISO 32000-1, 9.4).
import type { PdfFile } from "./file";
import { type Font, readFont } from "./fonts";
import { Lines } from "./lines";
import { type Dict, Name, PdfError, Reader, Stream, type Value, Word } from "./syntax";

const DEEPEST = 12;
const LONGEST_BLOCK = 30;
const LONGEST = 60_000;

type Matrix = [number, number, number, number, number, number];
const UNIT: Matrix = [1, 0, 0, 1, 0, 0];

interface State {
  matrix: Matrix;
  font: Font;
  size: number;
  characterSpace: number;
  wordSpace: number;
  stretch: number;
  leading: number;
}

const START: State = { matrix: UNIT, font: () => [], size: 0, characterSpace: 0, wordSpace: 0, stretch: 1, leading: 0 };

export class ContentReader {
  private readonly fonts = new Map<Value, Promise<Font>>();
  private readonly started = performance.now();
  private paused = this.started;

  constructor(private readonly file: PdfFile) {}

  async textOf(bytes: Uint8Array, resources: Dict): Promise<string> {
    const lines = new Lines();
    await this.run(bytes, resources, START, lines, 0);
    return lines.text();
  }

  private async run(bytes: Uint8Array, resources: Dict, start: State, lines: Lines, depth: number): Promise<void> {
    const reader = new Reader(bytes);
    const stack: State[] = [];
    let state = { ...start };
    let line = UNIT;
    let text = UNIT;
    let values: Value[] = [];
    const moveLine = (x: number, y: number) => (text = line = times([1, 0, 0, 1, x, y], line));
    const show = (value: Value | undefined) => {
      if (value instanceof Uint8Array) text = draw(value, state, text, lines);
    };
    for (let next = reader.next(); next !== undefined; next = reader.next()) {
      if (!(next instanceof Word)) {
        values.push(next);
        continue;
      }
      const numbers = values.filter((each) => typeof each === "number");
      const [first = 0, second = 0] = numbers;
      switch (next.text) {
        case "q":
          if (stack.length < 512) stack.push({ ...state });
          break;
        case "Q":
          state = stack.pop() ?? state;
          break;
        case "cm":
          if (numbers.length === 6) state.matrix = times(numbers as Matrix, state.matrix);
          break;
        case "BT":
          text = line = UNIT;
          break;
        case "Tf":
          state.font = await this.font(resources, values[0]);
          state.size = first;
          break;
        case "Tc":
          state.characterSpace = first;
          break;
        case "Tw":
          state.wordSpace = first;
          break;
        case "Tz":
          state.stretch = first / 100;
          break;
        case "TL":
          state.leading = first;
          break;
        case "TD":
          state.leading = -second;
          moveLine(first, second);
          break;
        case "Td":
          moveLine(first, second);
          break;
        case "Tm":
          if (numbers.length === 6) text = line = numbers as Matrix;
          break;
        case "T*":
          moveLine(0, -state.leading);
          break;
        case "Tj":
          show(values[0]);
          break;
        case '"':
          [state.wordSpace, state.characterSpace] = [first, second];
          moveLine(0, -state.leading);
          show(values[2]);
          break;
        case "'":
          moveLine(0, -state.leading);
          show(values[0]);
          break;
        case "TJ":
          for (const each of Array.isArray(values[0]) ? values[0] : []) {
            if (typeof each === "number") text = times([1, 0, 0, 1, (-each / 1000) * state.size * state.stretch, 0], text);
            else show(each);
          }
          break;
        case "Do":
          await this.form(resources, values[0], state, lines, depth);
          break;
        case "ID":
          skipImage(reader);
          break;
      }
      values = [];
      if (performance.now() - this.paused > LONGEST_BLOCK) await this.pause();
    }
  }

  private async font(resources: Dict, name: Value | undefined): Promise<Font> {
    const key = (await this.file.dict(resources.get("Font"))).get(name instanceof Name ? name.text : "");
    const dict = await this.file.dict(key);
    let found = this.fonts.get(dict);
    if (!found) this.fonts.set(dict, (found = readFont(this.file, dict)));
    return found;
  }

  /** Draws what has contents of its own, such as a letterhead. */
  private async form(resources: Dict, name: Value | undefined, state: State, lines: Lines, depth: number): Promise<void> {
    const key = (await this.file.dict(resources.get("XObject"))).get(name instanceof Name ? name.text : "");
    const form = await this.file.get(key);
    if (!(form instanceof Stream) || (await this.file.name(form.dict.get("Subtype"))) !== "Form" || depth > DEEPEST) return;
    const own = form.dict.has("Resources") ? await this.file.dict(form.dict.get("Resources")) : resources;
    const matrix = (await this.file.list(form.dict.get("Matrix"))).map(Number);
    const moved = matrix.length === 6 ? times(matrix as Matrix, state.matrix) : state.matrix;
    await this.run(await this.file.data(form), own, { ...state, matrix: moved }, lines, depth + 1);
  }

  /** Lets the page answer its user while a long file is read, which has to end some time. */
  private async pause(): Promise<void> {
    if (performance.now() - this.started > LONGEST) throw new PdfError(`reading it takes more than ${LONGEST / 1000} seconds`);
    await new Promise((resume) => setTimeout(resume));
    this.paused = performance.now();
  }
}

/** Draws a text, and returns the matrix behind it. */
function draw(bytes: Uint8Array, state: State, text: Matrix, lines: Lines): Matrix {
  let at = text;
  for (const { characters, width, isSpace } of state.font(bytes)) {
    const advance = (width * state.size + state.characterSpace + (isSpace ? state.wordSpace : 0)) * state.stretch;
    const place = times(at, state.matrix);
    at = times([1, 0, 0, 1, advance, 0], at);
    const [endX, endY] = times([1, 0, 0, 1, width * state.size * state.stretch, 0], place).slice(4) as [number, number];
    const size = Math.abs(state.size) * Math.hypot(place[2], place[3]);
    lines.add({ characters, x: place[4], y: place[5], endX, endY, size });
  }
  return at;
}

function times(a: Matrix, b: Matrix): Matrix {
  return [
    a[0] * b[0] + a[1] * b[2],
    a[0] * b[1] + a[1] * b[3],
    a[2] * b[0] + a[3] * b[2],
    a[2] * b[1] + a[3] * b[3],
    a[4] * b[0] + a[5] * b[2] + b[4],
    a[4] * b[1] + a[5] * b[3] + b[5],
  ];
}

/** Skips the bytes of a picture that stands among the operators. */
function skipImage(reader: Reader): void {
  const { bytes } = reader;
  for (let at = reader.at; at + 2 < bytes.length; at++) {
    const isEnd = bytes[at]! <= 32 && bytes[at + 1] === 0x45 && bytes[at + 2] === 0x49 && (bytes[at + 3] ?? 32) <= 32;
    if (isEnd) return void (reader.at = at + 3);
  }
  reader.at = bytes.length;
}
