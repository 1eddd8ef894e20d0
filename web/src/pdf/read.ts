// The text of a PDF file, page by page.
import { ContentReader } from "./content";
import { PdfFile } from "./file";
import { type Dict, PdfError, type Value } from "./syntax";

const MOST_PAGES = 5000;
/** Of the characters of a text, how many may be unknown. */
const UNKNOWN = 0.3;

/** Reads the text of a file. Throws an Error whose sentence says why there is none, and what to do. */
export async function readPdf(name: string, bytes: Uint8Array, largest: number): Promise<string> {
  const pages = await pagesOf(name, bytes);
  const text = pages.map((page, place) => `Page ${place + 1} of ${pages.length}:\n${page}`).join("\n\n");
  const all = pages.join("");
  if (!/\S/.test(all))
    throw new Error(
      `${name} has no text, only pictures. Have its text recognized by a program for that, or attach its pages as images.`,
    );
  if (all.split("\ufffd").length - 1 > UNKNOWN * all.length)
    throw new Error(`${name} does not say which characters its fonts draw. Attach its pages as images, or its text.`);
  if (text.length > largest)
    throw new Error(`${name} has more text than goes with a question: ${text.length} characters, of at most ${largest}. Attach a part of it.`);
  return text;
}

async function pagesOf(name: string, bytes: Uint8Array): Promise<string[]> {
  try {
    const file = await PdfFile.open(bytes);
    if (file.trailer.has("Encrypt"))
      throw new Error(`${name} is encrypted. Open it in a viewer, print it into a new PDF without a password, and attach that.`);
    const reader = new ContentReader(file);
    const found: string[] = [];
    for (const [page, resources] of await listPages(file)) {
      const parts = await Promise.all((await file.list(page.get("Contents"))).map((part) => file.data(part)));
      found.push(await reader.textOf(joined(parts), resources));
    }
    if (file.isMended && !/\S/.test(found.join(""))) throw new PdfError("what is left of it has no text");
    return found;
  } catch (error) {
    if (!(error instanceof PdfError) && !(error instanceof RangeError)) throw error;
    throw new Error(`${name} is damaged: ${error.message}. Open it in a viewer, save it from there, and attach that.`);
  }
}

/** The pages with their resources, which they may have from what they belong to. */
async function listPages(file: PdfFile): Promise<[Dict, Dict][]> {
  const found: [Dict, Dict][] = [];
  const seen = new Set<Dict>();
  const visit = async (value: Value | undefined, inherited: Value | undefined): Promise<void> => {
    const node = await file.dict(value);
    if (seen.has(node) || found.length >= MOST_PAGES) return;
    seen.add(node);
    const resources = node.get("Resources") ?? inherited;
    if (node.has("Kids")) for (const kid of await file.list(node.get("Kids"))) await visit(kid, resources);
    else if (node.size) found.push([node, await file.dict(resources)]);
  };
  await visit(await file.pages(), undefined);
  if (!found.length) for (const page of file.loosePages) found.push([page, await file.dict(page.get("Resources"))]);
  return found;
}

/** The parts of a page's contents; an operator ends where a part does. */
function joined(parts: Uint8Array[]): Uint8Array {
  const found = new Uint8Array(parts.reduce((sum, part) => sum + part.length + 1, 0)).fill(10);
  let at = 0;
  for (const part of parts) {
    found.set(part, at);
    at += part.length + 1;
  }
  return found;
}
