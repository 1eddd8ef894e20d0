// A conversation is a tree: an edited question or a regenerated answer is a sibling.
import type { Call } from "../server/types";
import type { Conversation, Message } from "./types";

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

function children(conversation: Conversation, parent: string | null): Message[] {
  return Object.values(conversation.messages)
    .filter((message) => message.parent === parent)
    .sort((a, b) => a.created - b.created);
}
