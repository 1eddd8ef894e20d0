// Requests, continues and stops answers, and follows them again after a reload.
import { change, conversations, put } from "../conversations/store";
import { path } from "../conversations/tree";
import type { Conversation, Figures, Message, Token } from "../conversations/types";
import { newId } from "../ids";
import { readRunning } from "../models/list";
import { lines, request, ServerError } from "../server/requests";
import type { ChatLine, TokenScore } from "../server/types";
import { calledOnly, offeredTools, requestBody } from "./asking";

const stops = new Map<string, AbortController>();

/** Adds a message after another one, or as the first one, and shows the branch that it ends. */
export function append(conversation: Conversation, message: Omit<Message, "id" | "created">): [Conversation, Message] {
  const whole: Message = { ...message, id: newId(), created: Date.now() };
  const messages = { ...conversation.messages, [whole.id]: whole };
  const title = conversation.title || titleOf(message.content || message.files?.[0]?.name || "Image");
  return [{ ...conversation, title, messages, leaf: whole.id, updated: whole.created }, whole];
}

/** Answers the branch that ends with `parent`. */
export function answer(conversation: Conversation, parent: string, model: string): void {
  const [changed, message] = append(conversation, {
    parent,
    role: "assistant",
    content: "",
    model,
    answerId: newId(),
  });
  put(changed);
  void ask(changed.id, message.id);
}

/** Continues an answer that a limit or the user has ended, from its text, or from its tokens if it has thoughts. */
export function goOn(conversation: Conversation, message: Message): void {
  const { content, thinking, tokens } = message;
  const prefix = tokens ? textOf(tokens) : thinking ? undefined : content;
  const begun = prefix === undefined ? content : undefined;
  const changes = { prefix, begun, prefixTokens: tokens?.length, answerId: newId(), error: undefined, figures: undefined };
  change(conversation.id, message.id, changes);
  void ask(conversation.id, message.id);
}

/** Begins a branch: the answer up to a token, another token instead, and the model's continuation. */
export function branch(conversation: Conversation, message: Message, place: number, other: Token): void {
  const before = message.tokens!.slice(0, place);
  const others = message.tokens![place]!.others;
  const tokens = [...before, { ...other, others }];
  const [changed, begun] = append(conversation, {
    parent: message.parent,
    role: "assistant",
    content: "",
    model: message.model,
    answerId: newId(),
    prefix: textOf(tokens),
    prefixTokens: tokens.length,
    tokens,
  });
  put(changed);
  void ask(changed.id, begun.id);
}

export function stop(message: Message): void {
  if (!message.answerId) return;
  stops.get(message.id)?.abort();
  const end = () => request("DELETE", `/api/answers/${message.answerId}`);
  // The request for the answer may still be in flight.
  end().catch(() => setTimeout(() => void end().catch(() => {}), 2000));
}

/** Follows the answers that were unfinished when the page was closed. */
export function followRunning(): void {
  for (const conversation of Object.values(conversations.value))
    for (const message of Object.values(conversation.messages)) if (message.answerId) void follow(conversation.id, message.id);
}

async function ask(id: string, messageId: string): Promise<void> {
  const conversation = conversations.value[id]!;
  const message = conversation.messages[messageId]!;
  const before = path(conversation, message.parent);
  await receive(id, messageId, async (signal) => {
    const [tools, remote] = await orStop(offeredTools(conversation.settings), signal);
    change(id, messageId, { remote });
    const body = await requestBody(conversation.settings, before, message, tools);
    return request("POST", "/api/chat", body, signal);
  });
  void readRunning().catch(() => {});
}

/** Waits for a promise that takes no signal, or until `signal` aborts. */
function orStop<T>(waited: Promise<T>, signal: AbortSignal): Promise<T> {
  const stopped = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
  });
  return Promise.race([waited, stopped]);
}

async function follow(id: string, messageId: string): Promise<void> {
  const answerId = conversations.value[id]!.messages[messageId]!.answerId!;
  await receive(id, messageId, (signal) => request("GET", `/api/answers/${answerId}`, undefined, signal));
}

async function receive(id: string, messageId: string, open: (signal: AbortSignal) => Promise<Response>): Promise<void> {
  const control = new AbortController();
  stops.set(messageId, control);
  const message = conversations.value[id]!.messages[messageId]!;
  const started = performance.now();
  let first: number | undefined;
  const begun = message.tokens?.slice(0, message.prefixTokens ?? 0);
  let next: Pick<Message, "content" | "thinking" | "calls" | "tokens"> = { content: message.begun ?? "", tokens: begun };
  let figures: Figures | undefined;
  let isDue = false;
  const show = () => {
    isDue = false;
    change(id, messageId, next, false);
  };
  try {
    for await (const line of lines<ChatLine>(await open(control.signal))) {
      const { content, thinking, tool_calls } = line.message;
      const isNew = line.logprobs !== undefined || content !== message.prefix;
      if (first === undefined && isNew && (content || thinking)) first = (performance.now() - started) / 1000;
      next = {
        content: next.content + content,
        thinking: thinking ? (next.thinking ?? "") + thinking : next.thinking,
        calls: tool_calls ? [...(next.calls ?? []), ...tool_calls] : next.calls,
        tokens: line.logprobs ? [...(next.tokens ?? []), ...line.logprobs.map(tokenOf)] : next.tokens,
      };
      if (line.done) figures = figuresOf(line, first);
      if (!isDue) {
        isDue = true;
        setTimeout(show, 40);
      }
    }
    const remote = calledOnly(next.calls, conversations.value[id]?.messages[messageId]?.remote);
    const error = figures ? undefined : "The answer was stopped.";
    change(id, messageId, { ...next, remote, figures, answerId: undefined, error });
  } catch (error) {
    await fail(id, messageId, next, error as Error, control.signal.aborted);
  } finally {
    stops.delete(messageId);
  }
}

async function fail(id: string, messageId: string, next: Partial<Message>, error: Error, isStopped: boolean): Promise<void> {
  const message = conversations.value[id]?.messages[messageId];
  if (!message) return;
  const kept = next.content || next.thinking ? next : {};
  if (isStopped) {
    change(id, messageId, { ...kept, answerId: undefined, error: "Stopped." });
  } else if (error instanceof ServerError && error.status === 0 && message.answerId) {
    change(id, messageId, kept);
    await new Promise((resume) => setTimeout(resume, 1500));
    if (conversations.value[id]?.messages[messageId]?.answerId) await follow(id, messageId);
  } else {
    change(id, messageId, { ...kept, answerId: undefined, error: error.message });
  }
}

function figuresOf(line: ChatLine, firstSeconds: number | undefined): Figures {
  const seconds = (line.eval_duration ?? 0) / 1e9;
  const promptSeconds = (line.prompt_eval_duration ?? 0) / 1e9;
  const loadSeconds = (line.load_duration ?? 0) / 1e9;
  const computed = (line.prompt_eval_count ?? 0) - (line.prompt_cached_count ?? 0);
  return {
    firstSeconds,
    rate: seconds > 0 ? (line.eval_count ?? 0) / seconds : undefined,
    promptRate: promptSeconds > 0 ? computed / promptSeconds : undefined,
    waitSeconds: Math.max(0, (line.total_duration ?? 0) / 1e9 - loadSeconds - promptSeconds - seconds),
    proposedTokens: line.proposed_count,
    acceptedTokens: line.accepted_count ?? 0,
    context: line.context_length,
    promptTokens: line.prompt_eval_count ?? 0,
    answerTokens: line.eval_count ?? 0,
    cachedTokens: line.prompt_cached_count ?? 0,
    cachedByTier: line.cached_tokens_by_tier,
    droppedTokens: line.prompt_dropped_count ?? 0,
    shiftedTokens: line.shifted_count ?? 0,
    loadSeconds,
    reason: line.done_reason ?? "",
  };
}

function tokenOf({ token, logprob, bytes, top_logprobs }: TokenScore): Token {
  const isWhole = !token.includes("\ufffd");
  return { text: token, logprob, bytes: isWhole ? undefined : bytes, others: top_logprobs?.map(tokenOf) };
}

function textOf(tokens: Token[]): string {
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  const pieces = tokens.map(({ text, bytes }) => (bytes ? new Uint8Array(bytes) : encoder.encode(text)));
  return pieces.map((piece) => decoder.decode(piece, { stream: true })).join("") + decoder.decode();
}

function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!;
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}
