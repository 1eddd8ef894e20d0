// The browser's database. Each conversation, message and draft is a record, and a change writes only what it names.
import { signal } from "@preact/signals";
import { type DBSchema, type IDBPDatabase, type IDBPTransaction, openDB } from "idb";

import { type Change, edited, isSame, type Receipt, withHead } from "./changes";
import { thisTab } from "./tabs";
import { withLeaf } from "./tree";
import type { Conversation, Head, Message } from "./types";

interface Schema extends DBSchema {
  conversations: { key: string; value: Head };
  messages: { key: [conversation: string, id: string]; value: Message & { conversation: string } };
  drafts: { key: [place: string, tab: string]; value: { place: string; tab: string; written: number; value: unknown } };
}

type Database = IDBPDatabase<Schema>;

// All transactions that write name all stores, so that they commit in the order in which they began.
const STORES = ["conversations", "messages", "drafts"] as const;

/** Why conversations cannot be read or kept; a reload helps if `isOutdated`. */
export const storageProblem = signal("");
export const isOutdated = signal(false);

let opening: Promise<Database> | undefined;

function database(): Promise<Database> {
  opening ??= open();
  opening.catch(() => (opening = undefined));
  return opening;
}

async function open(): Promise<Database> {
  const opened = await openDB<Schema>("chaski", 2, {
    upgrade: (opened, version, _, transaction) => void upgrade(opened, version, transaction).catch(() => transaction.abort()),
    blocked: () => {
      storageProblem.value =
        "Another tab shows an older version of this page. Load it again or close it; your conversations then appear here.";
    },
    blocking: (_, __, event) => {
      (event.target as IDBDatabase).close();
      isOutdated.value = true;
      storageProblem.value = "Another tab shows a newer version of this page. Load this tab again to keep what you do here.";
    },
    terminated: () => (opening = undefined),
  });
  storageProblem.value = "";
  return opened;
}

/** Version 1 had the messages inside of their conversation. */
async function upgrade(
  opened: Database,
  version: number,
  transaction: IDBPTransaction<Schema, ArrayLike<(typeof STORES)[number]>, "versionchange">,
): Promise<void> {
  if (version < 1) opened.createObjectStore("conversations", { keyPath: "id" });
  opened.createObjectStore("messages", { keyPath: ["conversation", "id"] });
  opened.createObjectStore("drafts", { keyPath: ["place", "tab"] });
  for await (const cursor of transaction.objectStore("conversations")) {
    const { messages, ...head } = cursor.value as Conversation;
    for (const message of Object.values(messages ?? {}))
      void transaction.objectStore("messages").put({ ...message, conversation: head.id });
    void cursor.update(head);
  }
}

export async function readAll(): Promise<Conversation[]> {
  const transaction = (await database()).transaction(["conversations", "messages"]);
  const [heads, all] = await Promise.all([
    transaction.objectStore("conversations").getAll(),
    transaction.objectStore("messages").getAll(),
  ]);
  const found = new Map(heads.map((head): [string, Conversation] => [head.id, { ...head, messages: {} }]));
  for (const { conversation, ...message } of all) {
    const place = found.get(conversation);
    if (place) place.messages[message.id] = message;
  }
  return [...found.values()].map(withLeaf);
}

export interface Read {
  head: Head;
  /** The ids of all messages. */
  ids: string[];
  /** The messages that were wanted. */
  messages: Message[];
}

/** Reads a conversation and its messages except those that are `known`. Null if it was deleted. */
export async function readOne(id: string, known: (messageId: string) => boolean): Promise<Read | null> {
  const transaction = (await database()).transaction(["conversations", "messages"]);
  const store = transaction.objectStore("messages");
  const [head, keys] = await Promise.all([transaction.objectStore("conversations").get(id), store.getAllKeys(allOf(id))]);
  if (!head) return null;
  const ids = keys.map(([, messageId]) => messageId);
  const found = await Promise.all(ids.filter((each) => !known(each)).map((each) => store.get([id, each])));
  const messages = found.map((record) => {
    const { conversation: _, ...message } = record!;
    return message;
  });
  return { head, ids, messages };
}

/** Writes a change. Returns false if the conversation was deleted. Writes no conversation that is new but exists. */
export async function write(id: string, change: Change): Promise<boolean> {
  const opened = await database();
  const isAdded = addRecords(opened, id, change);
  if (change.isNew) {
    if (!(await isAdded)) return true;
    if (!change.edits?.length && !change.removed?.length) return true;
  }
  const [isFound] = await Promise.all([changeRecords(opened, id, change), isAdded]);
  return isFound;
}

/** Adds records without reading any before, so that a reload right after this call does not prevent it. */
async function addRecords(opened: Database, id: string, change: Change): Promise<boolean> {
  const { isNew, added = [] } = change;
  if (!isNew && !added.length) return true;
  const transaction = opened.transaction(STORES, "readwrite");
  const done = transaction.done.then(
    () => true,
    (error: Error) => {
      if (isNew && error.name === "ConstraintError") return false;
      throw error;
    },
  );
  const ignore = () => {}; // `done` reports the error.
  if (isNew) transaction.objectStore("conversations").add(withHead(undefined, change)).catch(ignore);
  for (const message of added)
    transaction
      .objectStore("messages")
      .put({ ...message, conversation: id })
      .catch(ignore);
  transaction.commit();
  return done;
}

async function changeRecords(opened: Database, id: string, change: Change): Promise<boolean> {
  const { added = [], edits = [], removed = [] } = change;
  const transaction = opened.transaction(STORES, "readwrite");
  const messages = transaction.objectStore("messages");
  const head = await transaction.objectStore("conversations").get(id);
  const gone = head ? removed : added.map((message) => message.id);
  if (head) await transaction.objectStore("conversations").put(withHead(head, change));
  for (const edit of head ? edits : []) {
    const message = await messages.get([id, edit.id]);
    if (message) await messages.put({ ...edited(message, edit), conversation: id });
  }
  await Promise.all(gone.map((key) => messages.delete([id, key])));
  await transaction.done;
  return !!head;
}

export async function remove(id: string): Promise<void> {
  const transaction = (await database()).transaction(STORES, "readwrite");
  await Promise.all([
    transaction.objectStore("conversations").delete(id),
    transaction.objectStore("messages").delete(allOf(id)),
    transaction.objectStore("drafts").delete(IDBKeyRange.bound([id], [`${id}/\uffff`])),
    transaction.done,
  ]);
}

/** Makes this tab the receiver of an answer, unless the answer has ended or `held` is out of date. */
export async function claim(id: string, messageId: string, held: Partial<Receipt>): Promise<boolean> {
  const transaction = (await database()).transaction(STORES, "readwrite");
  const store = transaction.objectStore("messages");
  const message = await store.get([id, messageId]);
  const isHeld = !!message && isSame(message, held);
  if (isHeld) await store.put({ ...message, receiver: thisTab() });
  await transaction.done;
  return isHeld;
}

function allOf(id: string): IDBKeyRange {
  return IDBKeyRange.bound([id], [id, []]);
}

/** Reads a draft of this tab, or takes over the newest one of a tab that `isGone`. */
export async function readDraft(place: string, isGone: (tab: string) => Promise<boolean>): Promise<unknown> {
  const found = await (await database()).getAll("drafts", IDBKeyRange.bound([place], [place, []]));
  const own = found.find(({ tab }) => tab === thisTab());
  if (own) return own.value;
  for (const draft of found.sort((a, b) => b.written - a.written))
    if (await isGone(draft.tab)) {
      await writeDraft(place, draft.value, draft.tab);
      return draft.value;
    }
  return undefined;
}

/** Keeps a draft of this tab, instead of the one of another tab if it is given; deletes it if `value` is undefined. */
export async function writeDraft(place: string, value: unknown, other?: string): Promise<void> {
  const transaction = (await database()).transaction(STORES, "readwrite");
  const store = transaction.objectStore("drafts");
  if (other) void store.delete([place, other]);
  if (value === undefined) void store.delete([place, thisTab()]);
  else void store.put({ place, tab: thisTab(), written: Date.now(), value });
  transaction.commit();
  await transaction.done;
}
