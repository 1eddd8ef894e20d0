// Exports conversations to a file, and imports them again, or those of other programs.
import type { Read } from "../imports/conversations";
import { models, modelsAreRead } from "../models/list";
import { conversations, putAll } from "./store";
import type { Conversation } from "./types";

const FORMAT = "chaski-conversations-1";

export function exported(chosen: Conversation[]): Blob {
  const conversations = chosen.map(withoutSecrets);
  return new Blob([JSON.stringify({ format: FORMAT, conversations }, null, 1)], { type: "application/json" });
}

/** The query of an MCP server's address may contain a key. */
function withoutSecrets(conversation: Conversation): Conversation {
  const bare = (url: string) => url.split(/[?#]/)[0]!;
  const messages = Object.entries(conversation.messages).map(([id, message]) => {
    const tools = Object.entries(message.remote ?? {});
    const remote = tools.map(([name, { server, tool }]) => [name, { server: bare(server), tool }]);
    return [id, tools.length ? { ...message, remote: Object.fromEntries(remote) } : message];
  });
  const { mcp } = conversation.settings;
  const settings = mcp ? { ...conversation.settings, mcp: mcp.map(bare) } : conversation.settings;
  return { ...conversation, settings, messages: Object.fromEntries(messages) };
}

export function download(chosen: Conversation[], name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(exported(chosen));
  link.download = `${
    name
      .replace(/[^\p{L}\p{N} _-]/gu, "")
      .trim()
      .slice(0, 60) || "conversations"
  }.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Adds the conversations of files that are not here yet, and returns what happened as a text. Throws an Error that
 * describes a problem; then nothing was added.
 */
export async function importFiles(files: File[], onProgress: (text: string) => void = () => {}): Promise<string> {
  // Most people never import, so the code that reads other programs' files is loaded with the first import.
  const { readConversations } = await import("../imports/conversations");
  const read: Read = { conversations: [], unread: 0, missing: [] };
  for (const file of files) {
    const found = await readConversations(file, (count) => onProgress(`Reading ${file.name}: ${count} conversations`));
    read.conversations.push(...found.conversations);
    read.unread += found.unread;
    read.missing.push(...found.missing);
  }
  await modelsAreRead();
  const all = new Map(read.conversations.map((conversation) => [conversation.id, conversation]));
  const added = [...all.values()].filter(({ id }) => !conversations.value[id]).map(withKnownModel);
  putAll(added);
  return reportOf(read, added.length, all.size - added.length);
}

/** Conversations of other programs name models that this server may not have; then the user's last model answers. */
function withKnownModel(conversation: Conversation): Conversation {
  const isKnown = !models.value.length || models.value.some(({ name }) => name === conversation.model);
  return isKnown ? conversation : { ...conversation, model: "" };
}

function reportOf({ unread, missing }: Read, added: number, known: number): string {
  const here = known && `${known} ${known === 1 ? "was" : "were"} already here`;
  const images = [...new Set(missing)];
  const named = images.slice(0, 5).join(", ") + (images.length > 5 ? `, and ${images.length - 5} more` : "");
  const sentences = [
    [`${added} imported`, here].filter(Boolean).join(", "),
    unread && `${unread} could not be read`,
    images.length && `${images.length === 1 ? "An image is" : "Images are"} not in the file: ${named}`,
  ];
  return `${sentences.filter(Boolean).join(". ")}.`;
}
