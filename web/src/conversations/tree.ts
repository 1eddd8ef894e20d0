// A conversation is a tree: an edited question or a regenerated answer is a sibling.
import { newId } from "../ids";
import type { Call } from "../server/types";
import type { Conversation, Message } from "./types";

/** Makes a message that follows `parent`, or begins a conversation. */
export function newMessage(parent: string | null, fields: Omit<Message, "id" | "created" | "parent">): Message {
  return { ...fields, id: newId(), parent, created: Date.now() };
}

/** The messages from the first one to `leaf`. */
export function path(conversation: Conversation, leaf = conversation.leaf): Message[] {
  const found: Message[] = [];
  for (let id = leaf; id !== null; ) {
    const message: Message | undefined = conversation.messages[id];
    if (!message) break;
    found.unshift(message);
    id = message.parent;
  }
  return found;
}

/** The calls at the end of a branch without a result yet; results follow the answer that made the calls. */
export function openCalls(turns: Message[]): { asked: Message; calls: Call[] } | null {
  const place = turns.findLastIndex((turn) => turn.role !== "tool");
  const asked = turns[place];
  if (!asked?.calls || asked.answerId) return null;
  const calls = asked.calls.slice(turns.length - 1 - place);
  return calls.length ? { asked, calls } : null;
}

/** The siblings of a message and itself, the oldest first. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return children(conversation, message.parent);
}

/** The last message of the youngest branch below a message. */
export function youngestLeaf(conversation: Conversation, id: string): string {
  for (let last = id; ; ) {
    const next = children(conversation, last).at(-1);
    if (!next) return last;
    last = next.id;
  }
}

/** A message and all messages after it, in all branches. */
export function below(conversation: Conversation, id: string): Message[] {
  const message = conversation.messages[id];
  return message ? [message, ...children(conversation, id).flatMap((child) => below(conversation, child.id))] : [];
}

/** Returns the conversation with a leaf that ends a branch: the one of its leaf, or else the youngest. */
export function withLeaf(conversation: Conversation): Conversation {
  const { leaf, messages } = conversation;
  if (leaf !== null && messages[leaf]) return { ...conversation, leaf: youngestLeaf(conversation, leaf) };
  const youngest = Object.values(messages).sort(byAge).at(-1);
  return { ...conversation, leaf: youngest?.id ?? null };
}

/** The message that ends the shown branch after `removed` are gone: in the nearest other branch, or the parent. */
export function leafWithout(conversation: Conversation, removed: Message[]): string | null {
  const [first] = removed;
  if (!first || !removed.some(({ id }) => id === conversation.leaf)) return conversation.leaf;
  const all = siblings(conversation, first);
  const place = all.findIndex(({ id }) => id === first.id);
  const other = all[place - 1] ?? all[place + 1];
  return other ? youngestLeaf(conversation, other.id) : first.parent;
}

function children(conversation: Conversation, parent: string | null): Message[] {
  return Object.values(conversation.messages)
    .filter((message) => message.parent === parent)
    .sort(byAge);
}

/** Tabs that write in the same millisecond still agree on the order. */
function byAge(a: Message, b: Message): number {
  return a.created - b.created || (a.id < b.id ? -1 : 1);
}
