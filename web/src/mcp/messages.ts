// Reads the answers of MCP servers: JSON, or a stream of events that contain JSON.

const LARGEST = 32 << 20;

/** An error with a sentence for users: what failed, at which server, and what to do. */
export class McpError extends Error {}

export interface RpcMessage {
  id?: number | string | null;
  method?: string;
  result?: Record<string, unknown>;
  error?: { code?: number; message?: string };
}

/** Yields the messages of an answer in either of its two forms. */
export async function* messages(response: Response, url: string): AsyncGenerator<RpcMessage> {
  const type = (response.headers.get("Content-Type") ?? "").split(";")[0]!.trim().toLowerCase();
  if (type === "application/json") {
    let text = "";
    for await (const piece of pieces(response, url)) text += piece;
    yield* parsed(text, url);
  } else if (type === "text/event-stream") {
    for await (const text of events(pieces(response, url))) yield* parsed(text, url);
  } else {
    void response.body?.cancel();
    throw new McpError(`${url} answers with ${type || "nothing"}, as no MCP server does. Correct its address.`);
  }
}

/** Yields the data of events: lines that begin with `data:`, up to an empty line. */
async function* events(source: AsyncIterable<string>): AsyncGenerator<string> {
  let rest = "";
  let data: string[] = [];
  for await (const piece of source) {
    // A line may end with CR, LF or both; a CR at the end may be the first half of CRLF.
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line || !data.length) continue;
      const text = data.join("\n");
      data = [];
      if (text) yield text;
    }
  }
}

async function* pieces(response: Response, url: string): AsyncGenerator<string> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > LARGEST)
        throw new McpError(`${url} answers with more than ${LARGEST >> 20} MiB, which is not read. Ask it for less.`);
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Yields the messages of a text: one, or several, as the previous revision allows. */
function* parsed(text: string, url: string): Generator<RpcMessage> {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    throw new McpError(`${url} does not answer with JSON. Correct its address, or check its log.`);
  }
  for (const message of Array.isArray(found) ? found : [found])
    if (typeof message === "object" && message !== null) yield message as RpcMessage;
}
