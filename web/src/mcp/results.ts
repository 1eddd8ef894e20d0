// Turns the results of tools, texts and images, into messages of a conversation.
import { IMAGES, LARGEST_IMAGE } from "../chat/attachments";

export interface ToolResult {
  content: string;
  images?: string[];
}

interface Part {
  type?: string;
  text?: unknown;
  data?: unknown;
  mimeType?: unknown;
  uri?: unknown;
  resource?: { text?: unknown; uri?: unknown };
}

/** Reads the result of `tools/call`. A placeholder names any content that is neither text nor an image. */
export function readResult(result: Record<string, unknown>): ToolResult {
  const texts: string[] = [];
  const images: string[] = [];
  for (const part of (Array.isArray(result.content) ? result.content : []) as (Part | null)[]) {
    const image = imageOf(part);
    if (image) images.push(image);
    else texts.push(textOf(part));
  }
  if (!texts.length && !images.length && result.structuredContent !== undefined)
    texts.push(JSON.stringify(result.structuredContent));
  if (result.isError === true) texts.unshift("The tool failed.");
  return { content: texts.join("\n"), images: images.length ? images : undefined };
}

function imageOf(part: Part | null): string | undefined {
  if (part?.type !== "image" || typeof part.data !== "string" || !IMAGES.includes(String(part.mimeType))) return;
  const isRead = part.data.length * 0.75 <= LARGEST_IMAGE && /^[A-Za-z0-9+/]+=*$/.test(part.data);
  return isRead ? part.data : undefined;
}

function textOf(part: Part | null): string {
  if (part?.type === "text" && typeof part.text === "string") return part.text;
  if (part?.type === "resource" && typeof part.resource?.text === "string") return part.resource.text;
  if (part?.type === "resource_link" && typeof part.uri === "string") return part.uri;
  const kind = [part?.type, part?.mimeType].filter((each) => typeof each === "string").join(", ");
  return `[The tool returned something that this page does not read: ${kind || "of no type"}.]`;
}
