// Connects the MCP servers of a conversation on demand, and names their tools for models.
import type { RemoteTool } from "../conversations/types";
import { readAuthorization } from "./authorization";
import { Connection, type Tool } from "./connection";
import { McpError } from "./messages";
import { problemOfAddress } from "./reach";
import type { ToolResult } from "./results";

const LONGEST_NAME = 64;
const connections = new Map<string, Promise<Connection>>();

/** A tool in the form of `/api/chat`, and its server. */
export interface Offer extends RemoteTool {
  called: string;
  definition: { type: "function"; function: { name: string; description: string; parameters: object } };
}

/** Asks servers for their tools. Names for models have plain characters and are unique, also among `taken`. */
export async function offers(urls: string[], taken: Iterable<string>): Promise<Offer[]> {
  const lists = await Promise.all(urls.map(listTools));
  const names = new Set(taken);
  return lists.flatMap((tools, index) =>
    tools.map((tool) => {
      const called = freeName(tool.name, names);
      const { description, inputSchema: parameters } = tool;
      const definition = { type: "function" as const, function: { name: called, description, parameters } };
      return { server: urls[index]!, tool: tool.name, called, definition };
    }),
  );
}

export async function listTools(url: string): Promise<Tool[]> {
  return (await connected(url)).tools();
}

export async function runTool(remote: RemoteTool, values: Record<string, unknown>, signal: AbortSignal): Promise<ToolResult> {
  return (await connected(remote.server)).call(remote.tool, values, signal);
}

/** Ends the session with a server, if one exists; the next question begins a new one. */
export function disconnect(url: string): void {
  void connections.get(url)?.then((connection) => connection.close());
  connections.delete(url);
}

addEventListener("pagehide", () => [...connections.keys()].forEach(disconnect));

function connected(url: string): Promise<Connection> {
  let found = connections.get(url);
  if (!found) {
    found = connect(url);
    found.catch(() => connections.delete(url));
    connections.set(url, found);
  }
  return found;
}

async function connect(url: string): Promise<Connection> {
  const problem = await problemOfAddress(url);
  if (problem) throw new McpError(problem);
  const connection = new Connection(url, readAuthorization(url));
  await connection.open();
  return connection;
}

function freeName(name: string, taken: Set<string>): string {
  const plain = name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, LONGEST_NAME);
  let free = plain;
  for (let count = 2; taken.has(free); count++) free = `${plain.slice(0, LONGEST_NAME - 4)}_${count}`;
  taken.add(free);
  return free;
}
