// Builds a conversation of this page from a tree of another program's messages.
import { youngestLeaf } from "../conversations/tree";
import type { Conversation, Message } from "../conversations/types";
import { idFrom } from "./values";

/** A message of another program. `turn` is null if it is not shown; then its children follow the message before it. */
export interface Node {
  id: string;
  parent: string | null;
  turn: Omit<Message, "id" | "parent" | "created"> | null;
  created?: number;
  /** A thought that belongs to the next answer. */
  thought?: string;
}

type Head = Pick<Conversation, "id" | "title" | "model" | "settings"> & { created?: number; updated?: number };

const LONGEST_TITLE = 200;

/**
 * The conversation of a tree, or null if none of its messages is shown. Messages without a way to a first one are
 * dropped. `current` is the id of the node whose branch is shown.
 */
export function conversationOf(head: Head, nodes: Node[], current: string): Conversation | null {
  const now = Date.now();
  const created = head.created ?? head.updated ?? now;
  const known = new Map(nodes.map((node) => [node.id, node]));
  const children = new Map<string | null, Node[]>();
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  const messages: Record<string, Message> = {};
  /** The message that stands for each node: its own, or the one before it. */
  const places = new Map<string, string | null>();
  const waiting = [...(children.get(null) ?? [])].reverse().map((node) => ({ node, parent: null as string | null, thought: "" }));
  for (let number = 0, next = waiting.pop(); next; next = waiting.pop(), number++) {
    const { node, parent } = next;
    let { thought } = next;
    let place = parent;
    if (node.turn) {
      place = idFrom("m", node.id);
      const thinking = [thought, node.turn.thinking].filter(Boolean).join("\n\n");
      const more = thinking && node.turn.role === "assistant" ? { thinking } : {};
      if (node.turn.role !== "tool") thought = "";
      messages[place] = { ...node.turn, ...more, id: place, parent, created: node.created ?? created + number };
    } else if (node.thought) thought = [thought, node.thought].filter(Boolean).join("\n\n");
    places.set(node.id, place);
    for (const child of [...(children.get(node.id) ?? [])].reverse()) waiting.push({ node: child, parent: place, thought });
  }
  const first = Object.values(messages)[0];
  if (!first) return null;
  const title = head.title.trim().slice(0, LONGEST_TITLE) || "Untitled";
  const whole = { ...head, title, created, updated: head.updated ?? created, messages, leaf: null };
  return { ...whole, leaf: places.get(current) ?? youngestLeaf(whole, first.id) };
}
