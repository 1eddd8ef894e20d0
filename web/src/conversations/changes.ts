// Changes of a conversation. A change names only what it sets, so that it joins the changes of other tabs.
import { path, withLeaf } from "./tree";
import type { Conversation, Head, Message, Settings } from "./types";

/** The answer that a message waits for, and the tab that receives it. */
export type Receipt = Required<Pick<Message, "answerId" | "receiver">>;

export interface Edit {
  id: string;
  fields: Partial<Message>;
  /** The edit counts only while the message waits for this answer in this tab. */
  only?: Receipt;
}

export interface Change {
  /** The conversation does not exist yet, and `head` is complete. */
  isNew?: boolean;
  head?: Partial<Head>;
  settings?: Partial<Settings>;
  added?: Message[];
  edits?: Edit[];
  removed?: string[];
}

/** Returns the change that does first `a` and then `b`. */
export function joined(a: Change, b: Change): Change {
  const removed = [...(a.removed ?? []), ...(b.removed ?? [])];
  const added = [...(a.added ?? []), ...(b.added ?? [])].filter(({ id }) => !b.removed?.includes(id));
  const edits = [...(a.edits ?? [])].filter(({ id }) => !b.removed?.includes(id));
  for (const edit of b.edits ?? []) {
    const place = edits.findLastIndex(({ id }) => id === edit.id);
    const last = edits[place];
    if (last && isSame(last.only, edit.only)) edits[place] = { ...edit, fields: { ...last.fields, ...edit.fields } };
    else edits.push(edit);
  }
  const head = { ...a.head, ...b.head };
  const settings = { ...a.settings, ...b.settings };
  return { isNew: a.isNew || b.isNew, head, settings, added, edits, removed };
}

export function applied(conversation: Conversation, change: Change): Conversation {
  const messages = { ...conversation.messages };
  for (const message of change.added ?? []) messages[message.id] = message;
  for (const edit of change.edits ?? []) {
    const message = messages[edit.id];
    if (message) messages[edit.id] = edited(message, edit);
  }
  for (const id of change.removed ?? []) delete messages[id];
  return { ...conversation, ...withHead(conversation, change), messages };
}

export function withHead(head: Head | undefined, change: Change): Head {
  const all = { ...head, ...change.head } as Head;
  return { ...all, settings: { ...all.settings, ...change.settings } };
}

/** The settings that `after` sets, changes or leaves out. */
export function changedSettings(before: Settings, after: Settings): Partial<Settings> {
  const names = Object.keys({ ...before, ...after }) as (keyof Settings)[];
  return Object.fromEntries(names.filter((name) => before[name] !== after[name]).map((name) => [name, after[name]]));
}

export function edited(message: Message, { fields, only }: Edit): Message {
  return only && !isSame(message, only) ? message : { ...message, ...fields };
}

export function isSame(a: Partial<Receipt> | undefined, b: Partial<Receipt> | undefined): boolean {
  return a?.answerId === b?.answerId && a?.receiver === b?.receiver;
}

/** Keeps the branch that this tab shows, unless the branch chosen in another tab continues it. */
export function withShownBranch(read: Conversation, shown: string | null): Conversation {
  const isContinued = shown === null || path(read).some(({ id }) => id === shown);
  return withLeaf(isContinued || !read.messages[shown] ? read : { ...read, leaf: shown });
}
