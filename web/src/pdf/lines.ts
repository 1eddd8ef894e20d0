// Joins pieces of text, in the order in which a page draws them, into lines and paragraphs.
import type { TextItem } from "pdfjs-dist/types/src/display/api";

export type Piece = Pick<TextItem, "str" | "width" | "height" | "transform" | "hasEOL">;

const UNKNOWN = "\ufffd";
/** In text heights. */
const PARAGRAPH = 1.9;
const COLUMN = 2.5;
const SAME_PLACE = 0.08;

export class Lines {
  private readonly parts: string[] = [];
  private last: Piece | undefined;
  private isAtEnd = false;

  add(piece: Piece): void {
    if (piece.str.trim()) this.addText(piece);
    else if (this.last && piece.str) this.parts.push(piece.width > COLUMN * this.last.height ? "\t" : " ");
    this.isAtEnd ||= piece.hasEOL;
  }

  private addText(piece: Piece): void {
    const { last } = this;
    if (last && isSame(last, piece)) return; // The text is drawn twice to look bold.
    if (last && this.isAtEnd) this.parts.push(stepAside(last, piece) > PARAGRAPH ? "\n\n" : "\n");
    this.parts.push(piece.str);
    this.last = piece;
    this.isAtEnd = false;
  }

  text(): string {
    return this.parts
      .join("")
      .normalize("NFC")
      .replace(/[^\S\n\t]+/g, " ")
      .replace(/(?![\n\t])[\p{Cc}\p{Co}]/gu, UNKNOWN)
      .replace(/ *\t[ \t]*/g, "\t")
      .replace(/[ \t]*(\n+)[ \t]*/g, "$1")
      .replace(/\u00ad\n/g, "")
      .trim();
  }
}

/** The share of characters that their font does not identify. */
export function unknownShare(text: string): number {
  return (text.split(UNKNOWN).length - 1) / text.length;
}

function isSame(last: Piece, next: Piece): boolean {
  const [x, y] = step(last, next);
  return last.str === next.str && Math.hypot(x, y) < SAME_PLACE * next.height;
}

/** The distance between the lines of two successive pieces, in text heights. */
function stepAside(last: Piece, next: Piece): number {
  const [, , upX, upY] = last.transform as number[];
  const [x, y] = step(last, next);
  const up = Math.hypot(upX!, upY!);
  return up ? Math.abs(x * upX! + y * upY!) / up / Math.max(last.height, next.height) : 0;
}

function step(last: Piece, next: Piece): [number, number] {
  return [next.transform[4] - last.transform[4], next.transform[5] - last.transform[5]];
}
