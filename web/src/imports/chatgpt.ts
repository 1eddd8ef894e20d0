// Conversations of ChatGPT's export: a tree of nodes in `mapping`, with the shown branch in `current_node`.
import type { Conversation } from "../conversations/types";
import type { Call } from "../server/types";
import type { Images } from "./images";
import { conversationOf, type Node } from "./tree";
import { idFrom, isObject, isText, listOf, objectOf, textOf, timeOf, type Values } from "./values";

export function isOfChatGpt(value: unknown): value is Values {
  return isObject(value) && isObject(value.mapping);
}

/** The conversation, or null if it has no messages. */
export async function ofChatGpt(value: Values, images: Images): Promise<Conversation | null> {
  const mapping = value.mapping as Values;
  const nodes: Node[] = [];
  for (const [id, each] of Object.entries(mapping)) {
    const node = objectOf(each);
    const parent = isText(node.parent) ? node.parent : null;
    const message = objectOf(node.message);
    nodes.push({ id, parent, created: timeOf(message.create_time), ...(await read(message, images)) });
  }
  const id = textOf(value.conversation_id) || textOf(value.id) || `${timeOf(value.create_time)}${nodes[0]?.id}`;
  const head = {
    id: idFrom("chatgpt", id),
    title: textOf(value.title),
    model: "",
    settings: {},
    created: timeOf(value.create_time),
    updated: timeOf(value.update_time),
  };
  return conversationOf(head, nodes, textOf(value.current_node));
}

async function read(message: Values, images: Images): Promise<Pick<Node, "turn" | "thought">> {
  const metadata = objectOf(message.metadata);
  const author = objectOf(message.author);
  const content = objectOf(message.content);
  const kind = textOf(content.content_type);
  if (metadata.is_visually_hidden_from_conversation === true || kind.endsWith("editable_context")) return { turn: null };
  if (kind === "reasoning_recap") return { turn: null };
  if (kind === "thoughts") return { turn: null, thought: thoughtsOf(content) };
  const parts = await partsOf(content, metadata, images);
  const isEmpty = !parts.content && !parts.images;
  const to = textOf(message.recipient) || "all";
  switch (author.role) {
    case "user":
      return { turn: isEmpty ? null : { role: "user", ...parts } };
    case "assistant": {
      const model = textOf(metadata.model_slug) || "ChatGPT";
      if (to !== "all") return { turn: { role: "assistant", content: "", model, calls: [callOf(to, parts.content)] } };
      return { turn: isEmpty ? null : { role: "assistant", model, ...parts } };
    }
    case "tool":
      return { turn: isEmpty ? null : { role: "tool", toolName: textOf(author.name) || "tool", ...parts } };
    default:
      return { turn: null };
  }
}

function thoughtsOf(content: Values): string {
  const thoughts = listOf(content.thoughts).map(objectOf);
  return thoughts.map(({ summary, content: text }) => textOf(text) || textOf(summary)).join("\n\n");
}

function callOf(name: string, text: string): Call {
  try {
    const values = JSON.parse(text) as unknown;
    if (isObject(values)) return { function: { name, arguments: values } };
  } catch {
    // Programs are called with their text.
  }
  return { function: { name, arguments: { input: text } } };
}

async function partsOf(content: Values, metadata: Values, images: Images): Promise<{ content: string; images?: string[] }> {
  const attached = listOf(metadata.attachments).map(objectOf);
  const taken = new Set<string>();
  const found: string[] = [];
  const texts: string[] = [];
  for (const part of listOf(content.parts)) {
    const { asset_pointer: pointer, text } = objectOf(part);
    if (isText(part)) texts.push(part);
    else if (isText(pointer)) {
      const id = /\/\/([\w-]+)/.exec(pointer)?.[1] ?? pointer;
      const name = textOf(attached.find((each) => each.id === id)?.name) || id;
      taken.add(id);
      const image = await images.ofFile(id, name);
      if (image) found.push(image);
      else texts.push(`[Image ${name} is not in the export.]`);
    } else if (isText(text)) texts.push(text);
  }
  for (const { id, name } of attached)
    if (isText(name) && !taken.has(textOf(id))) texts.unshift(`[File ${name} was attached here.]`);
  texts.push(...[content.text, content.result].filter(isText));
  const text = withoutMarks(texts.filter(Boolean).join("\n\n"));
  return { content: text, images: found.length ? found : undefined };
}

/** Marks of sources and widgets are between private characters, and mean nothing outside of ChatGPT. */
function withoutMarks(text: string): string {
  return text.replace(/\ue200[^\ue200\ue201]*\ue201/g, "");
}
