// Conversations are stored in this browser's IndexedDB; the signals hold the visible ones.
import { computed, signal } from "@preact/signals";
import { type IDBPDatabase, openDB } from "idb";

import { newId } from "../ids";
import type { Conversation, Message } from "./types";

let opening: Promise<IDBPDatabase> | undefined;
const database = () =>
  (opening ??= openDB("chaski", 1, {
    upgrade: (opened) => {
      opened.createObjectStore("conversations", { keyPath: "id" });
    },
  }));
const SAVE_AFTER = 800;

export const conversations = signal<Record<string, Conversation>>({});
export const currentId = signal<string | null>(null);
export const current = computed(() => (currentId.value && conversations.value[currentId.value]) || null);
export const recent = computed(() => Object.values(conversations.value).sort((a, b) => b.updated - a.updated));
export const areRead = signal(false);
export const storageProblem = signal("");

const waiting = new Map<string, ReturnType<typeof setTimeout>>();

export async function readAll(): Promise<void> {
  try {
    const all = (await (await database()).getAll("conversations")) as Conversation[];
    conversations.value = Object.fromEntries(all.map((each) => [each.id, each]));
  } catch (error) {
    storageProblem.value = `Conversations cannot be kept here: ${(error as Error).message}`;
  }
  areRead.value = true;
}

export function begin(model: string, settings: Conversation["settings"]): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, settings, messages: {}, leaf: null };
}

/** Shows a changed conversation, and saves it soon, or at once. */
export function put(conversation: Conversation, atOnce = true): void {
  conversations.value = { ...conversations.value, [conversation.id]: conversation };
  if (atOnce) void save(conversation.id);
  else if (!waiting.has(conversation.id))
    waiting.set(
      conversation.id,
      setTimeout(() => void save(conversation.id), SAVE_AFTER),
    );
}

/** Changes a message of a conversation, if both still exist. */
export function change(id: string, messageId: string, changes: Partial<Message>, atOnce = true): void {
  const conversation = conversations.value[id];
  const message = conversation?.messages[messageId];
  if (!conversation || !message) return;
  const messages = { ...conversation.messages, [messageId]: { ...message, ...changes } };
  put({ ...conversation, messages }, atOnce);
}

export async function remove(id: string): Promise<void> {
  const { [id]: _, ...others } = conversations.value;
  conversations.value = others;
  if (currentId.value === id) location.hash = "#/";
  await (await database()).delete("conversations", id);
}

async function save(id: string): Promise<void> {
  clearTimeout(waiting.get(id));
  waiting.delete(id);
  const conversation = conversations.value[id];
  if (!conversation) return;
  try {
    await (await database()).put("conversations", conversation);
  } catch (error) {
    storageProblem.value = `This conversation could not be kept: ${(error as Error).message}`;
  }
}
