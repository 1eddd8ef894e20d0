// Requests to `/api/chat`: settings, turns, and tools.
import type { Message, RemoteTool, Settings } from "../conversations/types";
import { offers } from "../mcp/servers";
import { sees } from "../models/list";
import type { Call } from "../server/types";

type Remote = Record<string, RemoteTool>;

/** The tools of the settings and of MCP servers, and the servers of the latter. */
export async function offeredTools({ tools, mcp }: Settings): Promise<[unknown[] | undefined, Remote | undefined]> {
  const own = tools ? (JSON.parse(tools) as { function?: { name?: string } }[]) : undefined;
  if (!mcp?.length) return [own, undefined];
  const offered = await offers(
    mcp,
    (own ?? []).map((each) => each.function?.name ?? ""),
  );
  const remote = offered.map(({ called, server, tool }) => [called, { server, tool }]);
  return [[...(own ?? []), ...offered.map(({ definition }) => definition)], Object.fromEntries(remote)];
}

/** The offered tools that the answer calls; the others need not be kept. */
export function calledOnly(calls: Call[] = [], remote: Remote = {}): Remote | undefined {
  const found = calls.map(({ function: { name } }) => [name, remote[name]]).filter(([, tool]) => tool);
  return found.length ? Object.fromEntries(found) : undefined;
}

export async function requestBody(
  settings: Settings,
  before: Message[],
  message: Message,
  tools: unknown[] | undefined,
): Promise<Record<string, unknown>> {
  const { system, think, keep_alive, schema, tools: _, mcp: __, alternatives, ...options } = settings;
  const messages: unknown[] = system ? [{ role: "system", content: system }] : [];
  const hasReturned = before.some(({ role, images }) => role === "tool" && images);
  const turns = hasReturned && !(await sees(message.model!)) ? before.map(withoutReturnedImages) : before;
  messages.push(...turns.map(sent));
  if (message.begun) messages.push({ role: "assistant", content: message.begun });
  return {
    model: message.model,
    messages,
    options,
    think,
    keep_alive: keep_alive || undefined,
    format: schema && !message.prefix ? JSON.parse(schema) : undefined,
    tools,
    answer_id: message.answerId,
    answer_prefix: message.prefix,
    logprobs: alternatives === undefined ? undefined : true,
    top_logprobs: alternatives,
  };
}

function sent(message: Message): unknown {
  const files = (message.files ?? []).map(({ name, text }) => `File ${name}:\n\`\`\`\n${text}\n\`\`\`\n\n`);
  return {
    role: message.role,
    content: files.join("") + message.content,
    images: message.images,
    tool_calls: message.calls,
    tool_name: message.toolName,
  };
}

function withoutReturnedImages(message: Message): Message {
  if (message.role !== "tool" || !message.images) return message;
  const told = `[The tool returned ${message.images.length} image(s), which this model does not see.]`;
  return { ...message, images: undefined, content: `${message.content}\n${told}`.trim() };
}
