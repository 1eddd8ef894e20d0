// Requests, continues and stops answers.
import { signal } from "@preact/signals";

import type { Receipt } from "../conversations/changes";
import { add, changeMessage, conversations, receive } from "../conversations/store";
import { thisTab } from "../conversations/tabs";
import { newMessage, path } from "../conversations/tree";
import type { Message, Token } from "../conversations/types";
import { newId } from "../ids";
import { readRunning } from "../models/list";
import { request } from "../server/requests";
import { offeredTools, requestBody } from "./asking";
import { textOf } from "./lines";
import { followAgain, receiveAnswer } from "./receiving";

/** Counts the answers that were asked for in this tab; the page then shows the end. */
export const asked = signal(0);

export type Question = Pick<Message, "content" | "images" | "files">;

/** Asks a question after the message `parent`, or as the first one. */
export function askQuestion(id: string, parent: string | null, question: Question, model: string): void {
  answer(id, [newMessage(parent, { role: "user", ...question })], model);
}

/** Answers the branch that ends with the last of `before`; those of them that are new join the conversation. */
export function answer(id: string, before: Message[], model: string): void {
  const isNew = (message: Message) => !conversations.value[id]?.messages[message.id];
  const message = newMessage(before.at(-1)!.id, { role: "assistant", content: "", model, ...receipt() });
  begin(id, message, before.filter(isNew));
}

/** Continues an answer that a limit or the user has ended, from its text, or from its tokens if it has thoughts. */
export function goOn(id: string, message: Message): void {
  const { content, thinking, tokens } = message;
  const prefix = tokens ? textOf(tokens) : thinking ? undefined : content;
  const begun = prefix === undefined ? content : undefined;
  repeat(id, message, { prefix, begun, prefixTokens: tokens?.length, figures: undefined });
}

/** Begins a branch: the answer up to a token, another token instead, and the model's continuation. */
export function branch(id: string, message: Message, place: number, other: Token): void {
  const others = message.tokens![place]!.others;
  const tokens = [...message.tokens!.slice(0, place), { ...other, others }];
  const { parent, model } = message;
  const prefix = { prefix: textOf(tokens), prefixTokens: tokens.length, tokens };
  begin(id, newMessage(parent, { role: "assistant", content: "", model, ...receipt(), ...prefix }));
}

/** Receives an answer whose connection was lost, or asks for it again. What was received of it stays. */
export async function tryAgain(id: string, message: Message): Promise<void> {
  asked.value++;
  const lostId = message.answerId ?? message.lostId;
  if (lostId && (await followAgain(id, message.id, lostId))) return;
  const now = conversations.value[id]?.messages[message.id];
  if (!now || now.answerId) return;
  if (now.content || now.thinking) begin(id, newMessage(now.parent, again(now)));
  else repeat(id, now, {});
}

function again({ model, prefix, prefixTokens, tokens, begun }: Message): Parameters<typeof newMessage>[1] {
  const kept = { prefix, prefixTokens, begun, tokens: prefixTokens ? tokens?.slice(0, prefixTokens) : undefined };
  return { role: "assistant", content: "", model, ...receipt(), ...kept };
}

function begin(id: string, message: Message, before: Message[] = []): void {
  add(id, [...before, message], message.id);
  ask(id, message.id);
}

function repeat(id: string, message: Message, fields: Partial<Message>): void {
  changeMessage(id, message.id, { ...fields, ...receipt(), lostId: undefined, error: undefined });
  ask(id, message.id);
}

function receipt(): Receipt {
  return { answerId: newId(), receiver: thisTab() };
}

function ask(id: string, messageId: string): void {
  asked.value++;
  const conversation = conversations.value[id];
  const message = conversation?.messages[messageId];
  if (!conversation || !message) return;
  const only: Receipt = { answerId: message.answerId!, receiver: thisTab() };
  const open = async (signal: AbortSignal) => {
    const [tools, remote] = await orStop(offeredTools(conversation.settings), signal);
    receive(id, messageId, only, { remote });
    const body = await orStop(requestBody(conversation.settings, path(conversation, message.parent), message, tools), signal);
    return request("POST", "/api/chat", body, signal);
  };
  void receiveAnswer(id, messageId, open).finally(() => readRunning().catch(() => {}));
}

/** Waits for a promise that takes no signal, or until `signal` aborts. */
function orStop<T>(waited: Promise<T>, signal: AbortSignal): Promise<T> {
  const stopped = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
  });
  return Promise.race([waited, stopped]);
}
