// Conversations that this page exported.
import type { Conversation, Message } from "../conversations/types";
import { BadFile } from "./elements";
import { isObject, isText } from "./values";

/** Whether a value looks like a conversation of this page, whole or not. */
export function isOwn(value: unknown): value is Conversation {
  return isObject(value) && "messages" in value && "leaf" in value;
}

/** The conversation itself. Throws BadFile if a part of it is missing or is not what it should be. */
export function ownConversation(value: Conversation): Conversation {
  const { id, title, created, updated, model, settings, leaf, messages } = value;
  const isWhole =
    [id, title, model].every(isText) &&
    /^\w+$/.test(id) &&
    [created, updated].every((each) => typeof each === "number") &&
    isSettings(settings) &&
    isObject(messages) &&
    (leaf === null || isText(leaf)) &&
    Object.entries(messages).every(([key, message]) => isMessage(key, message as Message)) &&
    !hasCycle(messages);
  if (!isWhole) throw new BadFile("has a conversation that is incomplete. Export it again.");
  const ended = Object.entries(messages).map(([key, message]) => [key, message.answerId ? stopped(message) : message]);
  return { ...value, messages: Object.fromEntries(ended) };
}

/** An answer that was not finished when it was exported will not be continued by this server. */
function stopped({ answerId: _, ...message }: Message): Message {
  return { ...message, error: message.error ?? "The answer was stopped." };
}

function hasCycle(messages: Record<string, Message>): boolean {
  const known = new Set<string>();
  for (const start of Object.keys(messages)) {
    const seen = new Set<string>();
    for (let id: string | null = start; id !== null && !known.has(id); id = messages[id]?.parent ?? null) {
      if (seen.has(id)) return true;
      seen.add(id);
    }
    for (const id of seen) known.add(id);
  }
  return false;
}

function isMessage(key: string, message: Message): boolean {
  return (
    isObject(message) &&
    message.id === key &&
    ["user", "assistant", "tool"].includes(message.role) &&
    isText(message.content) &&
    (message.parent === null || isText(message.parent)) &&
    Array.isArray(message.images ?? []) &&
    (message.images ?? []).every((image) => isText(image) && /^[A-Za-z0-9+/=]*$/.test(image)) &&
    Array.isArray(message.files ?? []) &&
    (message.files ?? []).every((file) => isObject(file) && isText(file.name) && isText(file.text)) &&
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
