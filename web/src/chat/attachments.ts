// Files that go with a question: images as base64, anything that is text as text.
import type { TextFile } from "../conversations/types";

export const LARGEST_IMAGE = 32 << 20;
const LARGEST_TEXT = 1 << 20;
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
    if (file.size > (isImage ? LARGEST_IMAGE : LARGEST_TEXT)) found.problem = `${file.name} is too large.`;
    else if (isImage) found.images.push(await base64(file));
    else {
      const text = await textOf(file);
      if (text === null) found.problem = `${file.name} is neither a text nor an image that models read.`;
      else found.files.push({ name: file.name, text });
    }
  }
  return found;
}

async function textOf(file: File): Promise<string | null> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

function base64(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve((reader.result as string).split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
