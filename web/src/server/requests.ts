// Requests to the server that this page comes from, and to no other.
import { readKey, wantsKey } from "./key";

/** An error of the server with its status, or 0 if the server was not reached. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export async function request(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  const key = readKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response: Response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? null : JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  // The user may have given another key meanwhile.
  if (response.status === 401 && key === readKey()) wantsKey.value = "refused";
  if (!response.ok) throw new ServerError(response.status, await problem(response));
  return response;
}

/** Whether the server responds at all within a few seconds. */
export async function isReachable(): Promise<boolean> {
  try {
    await fetch("/api/version", { signal: AbortSignal.timeout(4000) });
    return true;
  } catch {
    return false;
  }
}

export async function json<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await request(method, path, body, signal);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(0, "The connection was lost.");
  }
}

/** Yields the objects of a stream of lines. Throws ServerError for a line with an error. */
export async function* lines<T>(response: Response): AsyncGenerator<T> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) if (part.trim()) yield checked<T>(part);
    }
  } catch (error) {
    if (error instanceof ServerError || (error as Error).name === "AbortError") throw error;
    throw new ServerError(0, "The connection was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

function checked<T>(line: string): T {
  const found = JSON.parse(line) as T & { error?: unknown };
  if (typeof found.error === "string") throw new ServerError(500, found.error);
  return found;
}

async function problem(response: Response): Promise<string> {
  const text = await response.text().catch(() => ""); // the connection broke after the status
  try {
    const { error } = JSON.parse(text) as { error: string | { message: string } };
    return typeof error === "string" ? error : error.message;
  } catch {
    // A proxy in front of the server answers with HTML.
    const status = `${response.status} ${response.statusText}`.trimEnd();
    return /^\s*</.test(text) || !text ? `The server answered ${status}.` : text;
  }
}
