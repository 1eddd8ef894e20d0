// Exports conversations to a file and imports them again.
import { conversations, put } from "./store";
import type { Conversation, Message } from "./types";

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

/** Adds the conversations of a file, and returns their number. Throws an Error that describes a problem. */
export async function importFile(file: File): Promise<number> {
  let found: { format?: string; conversations?: unknown };
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not valid JSON.`);
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations))
    throw new Error(`${file.name} is not an export of this page.`);
  const read = found.conversations.map(checked);
  for (const conversation of read) if (!conversations.value[conversation.id]) put(conversation);
  return read.length;
}

function checked(value: Conversation): Conversation {
  const { id, title, created, updated, model, settings, leaf } = value ?? {};
  const isWhole =
    [id, title, model].every((each) => typeof each === "string") &&
    [created, updated].every((each) => typeof each === "number") &&
    isSettings(settings) &&
    isObject(value.messages) &&
    (leaf === null || typeof leaf === "string") &&
    Object.entries(value.messages).every(([key, message]) => isMessage(key, message));
  if (!isWhole) throw new Error("A conversation in this file is incomplete.");
  return value;
}

function isMessage(key: string, message: Message): boolean {
  return (
    isObject(message) &&
    message.id === key &&
    ["user", "assistant", "tool"].includes(message.role) &&
    typeof message.content === "string" &&
    (message.parent === null || typeof message.parent === "string") &&
    (message.images ?? []).every((image) => /^[A-Za-z0-9+/=]*$/.test(image)) &&
    Array.isArray(message.calls ?? []) &&
    (message.calls ?? []).every((call) => isObject(call?.function) && isText(call.function.name)) &&
    isObject(message.remote ?? {}) &&
    Object.values(message.remote ?? {}).every((each) => isText(each?.server) && isText(each.tool))
  );
}

function isSettings(settings: Conversation["settings"]): boolean {
  if (!isObject(settings)) return false;
  const { schema = "", tools = "", mcp = [] } = settings;
  return isText(schema) && isText(tools) && Array.isArray(mcp) && mcp.every(isText);
}

function isText(value: unknown): boolean {
  return typeof value === "string";
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
