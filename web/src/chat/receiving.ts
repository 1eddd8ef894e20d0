// Receives answers for this tab, and those of tabs that were closed.
import { effect } from "@preact/signals";

import { isSame, type Receipt } from "../conversations/changes";
import { changeMessage, claim, conversations, receive } from "../conversations/store";
import { hearTabs, isOpen, thisTab } from "../conversations/tabs";
import type { Message } from "../conversations/types";
import { request, ServerError } from "../server/requests";
import { calledOnly } from "./asking";
import { type Open, Reception } from "./reception";

/** The note of an answer that the user has stopped. */
export const STOPPED = "Stopped.";
const TAKE_OVER_EVERY = 2_000;

class UnknownAnswerError extends Error {
  override message = "The server does not have this answer any more. It may have been restarted.";
}

const receptions = new Map<string, AbortController>();

/**
 * Receives an answer until it ends, or until the user or another tab takes it away.
 *
 * Returns false if the server has no such answer.
 */
export async function receiveAnswer(id: string, messageId: string, open: Open): Promise<boolean> {
  const message = conversations.value[id]!.messages[messageId]!;
  const only: Receipt = { answerId: message.answerId!, receiver: thisTab() };
  const control = new AbortController();
  receptions.set(messageId, control);
  const unwatch = effect(() => leaveIfTaken(conversations.value[id]?.messages[messageId], only, control));
  const write = (fields: Partial<Message>, atOnce = false) => receive(id, messageId, only, fields, atOnce);
  const reception = new Reception(message, control.signal, write);
  try {
    const answer = await reception.run(open, (signal) => openAgain(only.answerId, signal));
    unwatch();
    const remote = calledOnly(answer.calls, conversations.value[id]?.messages[messageId]?.remote);
    write({ ...answer, remote, answerId: undefined, error: undefined }, true);
  } catch (error) {
    unwatch();
    if (control.signal.aborted) return true;
    const isLost = error instanceof ServerError && [0, 401].includes(error.status);
    const lostId = isLost ? only.answerId : undefined;
    write({ ...reception.answer, lostId, answerId: undefined, error: (error as Error).message }, true);
    return !(error instanceof UnknownAnswerError);
  } finally {
    unwatch();
    if (receptions.get(messageId) === control) receptions.delete(messageId);
  }
  return true;
}

function leaveIfTaken(message: Message | undefined, only: Receipt, control: AbortController): void {
  if (message && isSame(message, only)) return;
  control.abort();
  if (message?.answerId !== only.answerId) endAnswer(only.answerId);
}

async function openAgain(answerId: string, signal: AbortSignal): Promise<Response> {
  try {
    return await request("GET", `/api/answers/${answerId}`, undefined, signal);
  } catch (error) {
    throw error instanceof ServerError && error.status === 404 ? new UnknownAnswerError() : error;
  }
}

/** Receives an answer of the server again. Returns false if the server does not have it. */
export function followAgain(id: string, messageId: string, answerId: string): Promise<boolean> {
  receptions.get(messageId)?.abort();
  changeMessage(id, messageId, { answerId, receiver: thisTab(), lostId: undefined, error: undefined });
  return receiveAnswer(id, messageId, (signal) => openAgain(answerId, signal));
}

export function stop(id: string, message: Message): void {
  if (!message.answerId) return;
  const isElsewhere = !receptions.has(message.id);
  changeMessage(id, message.id, { answerId: undefined, error: STOPPED });
  if (isElsewhere) endAnswer(message.answerId);
}

/** Ends an answer on the server. The request for the answer may still be in flight. */
function endAnswer(answerId: string): void {
  const end = () => request("DELETE", `/api/answers/${answerId}`);
  end().catch(() => setTimeout(() => void end().catch(() => {}), 2000));
}

/** Receives the answers that were unfinished when their tab was closed or loaded again, also later ones. */
export function followRunning(): void {
  void takeOver();
  setInterval(() => void takeOver(), TAKE_OVER_EVERY);
  hearTabs(({ kind }) => kind === "closes" && void takeOver());
}

let isTakingOver = false;

async function takeOver(): Promise<void> {
  if (isTakingOver) return;
  isTakingOver = true;
  for (const { id, messages } of Object.values(conversations.value))
    for (const { id: messageId, answerId, receiver } of Object.values(messages)) {
      if (!answerId || receptions.has(messageId)) continue;
      if (receiver && receiver !== thisTab() && (await isOpen(receiver))) continue;
      // Without a database there are no other tabs.
      const isClaimed = await claim(id, messageId, { answerId, receiver }).catch(() => false);
      if (isClaimed && !receptions.has(messageId)) void receiveAnswer(id, messageId, (signal) => openAgain(answerId, signal));
    }
  isTakingOver = false;
}
