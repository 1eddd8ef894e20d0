// Adds the lines of a streamed answer to its message.
import type { Figures, Message, Token } from "../conversations/types";
import type { ChatLine, TokenScore } from "../server/types";

/** The parts of a message that its answer fills. */
export type Answer = Pick<Message, "content" | "thinking" | "calls" | "tokens" | "figures">;

/** The answer before its first line: what it had to begin with. */
export function begunAnswer(message: Message): Answer {
  const tokens = message.tokens?.slice(0, message.prefixTokens ?? 0);
  return { content: message.begun ?? "", thinking: undefined, calls: undefined, tokens };
}

/** firstSeconds: time to the first token, if it has come. */
export function withLine(answer: Answer, line: ChatLine, firstSeconds: number | undefined): Answer {
  const { content, thinking, tool_calls } = line.message;
  return {
    content: answer.content + content,
    thinking: thinking ? (answer.thinking ?? "") + thinking : answer.thinking,
    calls: tool_calls ? [...(answer.calls ?? []), ...tool_calls] : answer.calls,
    tokens: line.logprobs ? [...(answer.tokens ?? []), ...line.logprobs.map(tokenOf)] : answer.tokens,
    figures: line.done ? figuresOf(line, firstSeconds) : undefined,
  };
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

/** The text of tokens, some of which may be parts of a character. */
export function textOf(tokens: Token[]): string {
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  const pieces = tokens.map(({ text, bytes }) => (bytes ? new Uint8Array(bytes) : encoder.encode(text)));
  return pieces.map((piece) => decoder.decode(piece, { stream: true })).join("") + decoder.decode();
}
