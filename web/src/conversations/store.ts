// The conversations of this tab. The browser's database has the truth, and all tabs of this page share it.
import { computed, signal } from "@preact/signals";

import { newId } from "../ids";
import { applied, type Change, changedSettings, isSame, joined, type Receipt, withShownBranch } from "./changes";
import * as records from "./records";
import { hearTabs, tell, thisTab } from "./tabs";
import { leafWithout } from "./tree";
import type { Conversation, Head, Message, Settings } from "./types";

/** Milliseconds after which the growing text of an answer is saved, and seen by other tabs. */
const SAVE_AFTER = 400;

export const conversations = signal<Record<string, Conversation>>({});
export const currentId = signal<string | null>(null);
export const current = computed(() => (currentId.value && conversations.value[currentId.value]) || null);
export const recent = computed(() => Object.values(conversations.value).sort((a, b) => b.updated - a.updated));
export const areRead = signal(false);
/** The name of the shown conversation after another tab has deleted it. */
export const deletedElsewhere = signal("");

/** Changes that the database does not have yet, by conversation: those being written, and those after them. */
const writing = new Map<string, Change>();
const waiting = new Map<string, Change>();
/** Conversations with changes that could not be written. */
const failed = new Set<string>();
/** Conversations to be saved again as soon as the running save is over. */
const urgent = new Set<string>();
const timers = new Map<string, ReturnType<typeof setTimeout>>();

/** Reads all conversations, and hears from now on what other tabs write. */
export async function readAll(): Promise<void> {
  try {
    // A tab with an outdated page cannot read; it says so.
    hearTabs((note) => note.kind === "written" && void refresh(note.id, note.messages).catch(() => {}));
    addEventListener("pageshow", (event) => event.persisted && void readAgain());
    addEventListener("pagehide", () => [...timers.keys()].forEach((id) => void save(id)));
    await readAgain();
  } catch (error) {
    records.storageProblem.value ||= `Conversations cannot be kept here: ${(error as Error).message}`;
  }
  areRead.value = true;
}

async function readAgain(): Promise<void> {
  const read = await records.readAll();
  const begun = Object.values(conversations.value).filter(({ id }) => unsaved(id)?.isNew);
  conversations.value = Object.fromEntries([...begun, ...read.map(withUnsaved)].map((each) => [each.id, each]));
}

export function begin(model: string, settings: Conversation["settings"]): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, settings, messages: {}, leaf: null };
}

/** Keeps a new conversation, which is saved soon or at once. */
export function put(conversation: Conversation, atOnce = true): void {
  const { messages, ...head } = conversation;
  conversations.value = { ...conversations.value, [conversation.id]: conversation };
  change(conversation.id, { isNew: true, head, added: Object.values(messages) }, atOnce);
}

/** Keeps many new conversations. */
export function putAll(many: Conversation[]): void {
  conversations.value = { ...conversations.value, ...Object.fromEntries(many.map((each) => [each.id, each])) };
  for (const { messages, ...head } of many) {
    waiting.set(head.id, { isNew: true, head, added: Object.values(messages) });
    void save(head.id);
  }
}

export function changeHead(id: string, head: Partial<Head>): void {
  change(id, { head });
}

/** Changes those settings in which `after` differs from `before`. */
export function changeSettings(id: string, before: Settings, after: Settings): void {
  change(id, { settings: changedSettings(before, after) });
}

/** Adds messages to a conversation, and shows the branch that ends with `leaf`. */
export function add(id: string, added: Message[], leaf: string | null): void {
  const head: Partial<Head> = { leaf, updated: Date.now() };
  const first = added.find(({ role }) => role === "user");
  if (first && !conversations.value[id]?.title) head.title = titleOf(first.content || first.files?.[0]?.name || "Image");
  change(id, { added, head });
}

export function changeMessage(id: string, messageId: string, fields: Partial<Message>): void {
  change(id, { edits: [{ id: messageId, fields }] });
}

/** Changes a message while this tab receives its answer; saved soon, or at once. */
export function receive(id: string, messageId: string, only: Receipt, fields: Partial<Message>, atOnce = false): void {
  change(id, { edits: [{ id: messageId, fields, only }] }, atOnce);
}

/** Makes this tab the receiver of a message's answer, if its receiver is still `held`. */
export async function claim(id: string, messageId: string, held: Partial<Receipt>): Promise<boolean> {
  const isClaimed = await records.claim(id, messageId, held);
  if (isClaimed) tell({ kind: "written", id, messages: [messageId] });
  await refresh(id, [messageId]);
  return isClaimed && isSame(conversations.value[id]?.messages[messageId], { ...held, receiver: thisTab() });
}

/** Deletes messages; `removed` begins with the one that all others follow. */
export function removeMessages(id: string, removed: Message[]): void {
  const conversation = conversations.value[id];
  if (!conversation) return;
  change(id, { removed: removed.map((message) => message.id), head: { leaf: leafWithout(conversation, removed) } });
}

export async function remove(id: string): Promise<void> {
  forget(id);
  if (currentId.value === id) location.hash = "#/";
  try {
    await records.remove(id);
    tell({ kind: "written", id, messages: [] });
  } catch (error) {
    records.storageProblem.value ||= `This conversation could not be deleted: ${(error as Error).message}`;
  }
}

function forget(id: string): void {
  const { [id]: _, ...others } = conversations.value;
  conversations.value = others;
  waiting.delete(id);
}

/** Shows a change, and saves it soon, or at once. */
function change(id: string, change: Change, atOnce = true): void {
  const conversation = conversations.value[id];
  if (!conversation) return;
  conversations.value = { ...conversations.value, [id]: applied(conversation, change) };
  waiting.set(id, joined(waiting.get(id) ?? {}, change));
  if (atOnce) void save(id);
  else if (!timers.has(id))
    timers.set(
      id,
      setTimeout(() => void save(id), SAVE_AFTER),
    );
}

async function save(id: string): Promise<void> {
  clearTimeout(timers.get(id));
  timers.delete(id);
  const change = waiting.get(id);
  if (!change) return;
  if (writing.has(id)) {
    urgent.add(id);
    return;
  }
  waiting.delete(id);
  writing.set(id, change);
  try {
    if (!(await records.write(id, change))) leaveDeleted(id);
    writing.delete(id);
    if (failed.delete(id) && !failed.size) records.storageProblem.value = "";
    tell({ kind: "written", id, messages: touched(change) });
  } catch (error) {
    // The change stays, and is written together with the next one.
    writing.delete(id);
    waiting.set(id, joined(change, waiting.get(id) ?? {}));
    failed.add(id);
    records.storageProblem.value ||= `This conversation could not be kept: ${(error as Error).message}`;
    return;
  }
  if (urgent.delete(id)) await save(id);
}

/** Reads again what another tab has written. */
async function refresh(id: string, messages: string[]): Promise<void> {
  const before = conversations.value[id]?.messages ?? {};
  const read = await records.readOne(id, (each) => each in before && !messages.includes(each));
  if (!read) return leaveDeleted(id);
  const now = conversations.value[id];
  const all = { ...now?.messages, ...Object.fromEntries(read.messages.map((each) => [each.id, each])) };
  const existing = Object.fromEntries(read.ids.flatMap((each) => (all[each] ? [[each, all[each]]] : [])));
  const changed = withUnsaved({ ...read.head, messages: existing });
  conversations.value = { ...conversations.value, [id]: withShownBranch(changed, now?.leaf ?? null) };
}

function leaveDeleted(id: string): void {
  const known = conversations.value[id];
  if (!known || unsaved(id)?.isNew) return;
  forget(id);
  if (currentId.value !== id) return;
  deletedElsewhere.value = known.title;
  location.hash = "#/";
}

function unsaved(id: string): Change | undefined {
  const [first, second] = [writing.get(id), waiting.get(id)];
  return first && second ? joined(first, second) : (first ?? second);
}

function withUnsaved(conversation: Conversation): Conversation {
  return applied(conversation, unsaved(conversation.id) ?? {});
}

function touched({ added = [], edits = [], removed = [] }: Change): string[] {
  return [...new Set([...added.map(({ id }) => id), ...edits.map(({ id }) => id), ...removed])];
}

function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!;
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}
