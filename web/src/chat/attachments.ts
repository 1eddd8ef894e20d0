// Files attached to a question: images as base64, PDFs and text files as text.
import type { TextFile } from "../conversations/types";
import { bytes } from "../models/list";

export const LARGEST_IMAGE = 32 << 20;
const LARGEST_TEXT = 1 << 20;
const LARGEST_PDF = 32 << 20;
export const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

export interface Attachments {
  images: string[];
  files: TextFile[];
  problem: string;
}

export async function readAttachments(files: Iterable<File>): Promise<Attachments> {
  const found: Attachments = { images: [], files: [], problem: "" };
  for (const file of files) {
    const isImage = IMAGES.includes(file.type);
    const isPdf = await beginsAsPdf(file);
    const largest = isImage ? LARGEST_IMAGE : isPdf ? LARGEST_PDF : LARGEST_TEXT;
    if (file.size > largest)
      found.problem = `${file.name} is too large: ${bytes(file.size)}, of at most ${bytes(largest)}. Attach a part of it.`;
    else if (isImage) found.images.push(await base64(file));
    else
      try {
        found.files.push({ name: file.name, text: isPdf ? await pdfText(file) : await textOf(file) });
      } catch (error) {
        found.problem = (error as Error).message;
      }
  }
  return found;
}

async function beginsAsPdf(file: File): Promise<boolean> {
  return /\.pdf$/i.test(file.name) || file.type === "application/pdf" || (await file.slice(0, 5).text()) === "%PDF-";
}

async function pdfText(file: File): Promise<string> {
  const { readPdf } = await import("../pdf/read");
  return readPdf(file.name, new Uint8Array(await file.arrayBuffer()), LARGEST_TEXT);
}

async function textOf(file: File): Promise<string> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // The file is not UTF-8; the code below reports that it is not text.
  }
  throw new Error(`${file.name} is neither a text, a PDF nor an image that models read. Attach its text, or a picture of it.`);
}

function base64(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve((reader.result as string).split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
