// Reads the text of a PDF file page by page. pdf.js runs in a worker that ends afterwards.
import {
  getDocument,
  InvalidPDFException,
  PasswordException,
  type PDFPageProxy,
  PDFWorker,
  VerbosityLevel,
} from "pdfjs-dist/legacy/build/pdf.mjs";
import type { DocumentInitParameters, TextContent } from "pdfjs-dist/types/src/display/api";

import { TOO_LARGE } from "./bounds";
import { mapReader } from "./cmaps";
import { Lines, type Piece, unknownShare } from "./lines";
import { startWorker } from "./start";

const LONGEST_SECONDS = 60;
const MOST_UNKNOWN = 0.1;

/** An error whose message explains why there is no text, and what to do. */
class NoText extends Error {}

/** Read the text of a file. Throws NoText if it has no text. */
export async function readPdf(name: string, bytes: Uint8Array, largest: number): Promise<string> {
  const port = startWorker();
  let stop: (error: Error) => void = () => {};
  const stopped = new Promise<never>((_, reject) => {
    stop = reject;
  });
  const slow = new NoText(`${name} takes more than ${LONGEST_SECONDS} seconds to read. Attach a part of it.`);
  const timer = setTimeout(stop, LONGEST_SECONDS * 1000, slow);
  port.addEventListener("message", ({ data }) => data === TOO_LARGE && stop(new Error(TOO_LARGE)));
  const fail = (why: string) => stop(new NoText(`${name} cannot be read: ${why}.`));
  port.addEventListener("error", () => fail("the PDF reader did not load. Reload the page"));
  const settings = {
    data: bytes,
    worker: PDFWorker.create({ port, verbosity: VerbosityLevel.ERRORS }),
    BinaryDataFactory: mapReader(fail),
    disableFontFace: true,
    useWasm: false,
  };
  try {
    return await Promise.race([textOf(name, settings, largest), stopped]);
  } catch (error) {
    throw explained(name, error as Error);
  } finally {
    clearTimeout(timer);
    port.terminate();
  }
}

async function textOf(name: string, settings: DocumentInitParameters, largest: number): Promise<string> {
  const file = await getDocument(settings).promise;
  const pages: string[] = [];
  let left = largest;
  const take = (text: string) => {
    left -= text.length;
    if (left < 0)
      throw new NoText(`${name} has more text than the ${largest} characters that a question may contain. Attach a part of it.`);
  };
  for (let number = 1; number <= file.numPages; number++) {
    const lines = new Lines();
    for await (const piece of piecesOf(await file.getPage(number))) {
      take(piece.str);
      lines.add(piece);
    }
    take(headingOf(number, file.numPages));
    pages.push(lines.text());
  }
  check(name, pages.join(""));
  return pages.map((page, place) => headingOf(place + 1, pages.length) + page).join("\n\n");
}

function headingOf(number: number, count: number): string {
  return `Page ${number} of ${count}:\n`;
}

async function* piecesOf(page: PDFPageProxy): AsyncGenerator<Piece> {
  const reader = page.streamTextContent().getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read())
    yield* (read.value as TextContent).items.filter((item) => "str" in item);
  page.cleanup();
}

function check(name: string, text: string): void {
  if (!/\S/.test(text))
    throw new NoText(`${name} contains only pictures, no text. Run OCR on it, or attach its pages as images.`);
  if (unknownShare(text) > MOST_UNKNOWN)
    throw new NoText(`${name} does not define which characters its fonts draw. Attach its pages as images, or its text.`);
}

function explained(name: string, error: Error): Error {
  if (error instanceof NoText) return error;
  if (error instanceof PasswordException)
    return new NoText(
      `${name} is encrypted. Open it with its password in a viewer, print it into a new PDF without one, and attach that.`,
    );
  const state =
    error instanceof InvalidPDFException ? "is damaged, or not a PDF" : `is damaged: ${error.message.replace(/\.$/, "")}`;
  return new NoText(`${name} ${state}. Open it in a viewer, save it from there, and attach that.`);
}
