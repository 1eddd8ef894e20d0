// Shapes in the order in which they are drawn become lines: a space is a gap, a line a step aside.
import { PdfError } from "./syntax";

export interface Placed {
  characters: string;
  x: number;
  y: number;
  endX: number;
  endY: number;
  size: number;
}

/** In sizes of the font. */
const SPACE = 0.17;
const COLUMN = 2.5;
const BACK = -1;
const LINE = 0.55;
const PARAGRAPH = 1.9;
const MOST_PARTS = 1 << 23;

export class Lines {
  private readonly parts: string[] = [];
  private last: Placed | undefined;

  add(shape: Placed): void {
    const { last } = this;
    if (!Number.isFinite(shape.x + shape.y + shape.endX + shape.endY) || !shape.size) return;
    if (last && last.characters === shape.characters && isSamePlace(last, shape)) return; // bold by drawing twice
    if (this.parts.length > MOST_PARTS) throw new PdfError("a page of it draws millions of letters");
    if (last) this.parts.push(between(last, shape));
    this.parts.push(shape.characters || "\ufffd");
    this.last = shape;
  }

  text(): string {
    return this.parts
      .join("")
      .normalize("NFC")
      .replace(/[\ufb00-\ufb06]/g, (ligature) => ligature.normalize("NFKC"))
      .replace(/[\0-\x08\x0e-\x1f]/g, "")
      .replace(/[^\S\n\t]+/g, " ")
      .replace(/ *\t[ \t]*/g, "\t")
      .replace(/\s*\n[ \t]*/g, (gap) => (gap.includes("\n\n") ? "\n\n" : "\n"))
      .replace(/\u00ad\n/g, "")
      .trim();
  }
}

function isSamePlace(a: Placed, b: Placed): boolean {
  return Math.hypot(a.x - b.x, a.y - b.y) < 0.08 * b.size;
}

function between(last: Placed, next: Placed): string {
  const size = Math.max(last.size, next.size);
  const length = Math.hypot(last.endX - last.x, last.endY - last.y);
  // The direction of the line that the last shape stands on.
  const [alongX, alongY] = length ? [(last.endX - last.x) / length, (last.endY - last.y) / length] : [1, 0];
  const [x, y] = [next.x - last.endX, next.y - last.endY];
  const along = (x * alongX + y * alongY) / size;
  const aside = Math.abs(y * alongX - x * alongY) / size;
  if (aside > PARAGRAPH) return "\n\n";
  if (aside > LINE || along < BACK) return "\n";
  return along > COLUMN ? "\t" : along > SPACE ? " " : "";
}
