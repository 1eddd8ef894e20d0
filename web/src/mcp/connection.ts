// A client of the Model Context Protocol over streamable HTTP, revision 2025-06-18.
// It offers no services to servers: no sampling, no roots, no elicitation.
import { McpError, messages, type RpcMessage } from "./messages";
import { answersOthers } from "./reach";
import { readResult, type ToolResult } from "./results";

const VERSION = "2025-06-18";
const VERSIONS = [VERSION, "2025-03-26"];
const LONGEST_SETUP = 30_000;
const MOST_TOOLS = 1000;
const NO_SUCH_METHOD = -32601;

export interface Tool {
  name: string;
  description: string;
  inputSchema: Record<string, unknown>;
}

export class Connection {
  private session: string | null = null;
  private version: string | null = null;
  private lastId = 0;

  constructor(
    readonly url: string,
    private readonly authorization: string,
  ) {}

  async open(): Promise<void> {
    this.session = this.version = null;
    const client = { protocolVersion: VERSION, capabilities: {}, clientInfo: { name: "chaski", version: "1" } };
    const { protocolVersion } = await this.ask("initialize", client, AbortSignal.timeout(LONGEST_SETUP));
    if (!VERSIONS.includes(String(protocolVersion)))
      throw new McpError(
        `${this.url} uses revision ${String(protocolVersion).slice(0, 40)} of MCP, but this page supports ` +
          `${VERSIONS.join(" and ")}. Use a version of that server that supports one of them.`,
      );
    this.version = String(protocolVersion);
    await this.send({ method: "notifications/initialized" }, AbortSignal.timeout(LONGEST_SETUP));
  }

  async tools(): Promise<Tool[]> {
    const found: Tool[] = [];
    for (let cursor: unknown; ; ) {
      const page = await this.again("tools/list", cursor ? { cursor } : {}, AbortSignal.timeout(LONGEST_SETUP));
      for (const tool of Array.isArray(page.tools) ? page.tools : []) found.push(this.checked(tool));
      if (found.length > MOST_TOOLS || (page.nextCursor && page.nextCursor === cursor))
        throw new McpError(`${this.url} lists tools without end, or more than ${MOST_TOOLS}. Use another server.`);
      cursor = page.nextCursor;
      if (!cursor) return found;
    }
  }

  async call(name: string, values: Record<string, unknown>, signal: AbortSignal): Promise<ToolResult> {
    return readResult(await this.again("tools/call", { name, arguments: values }, signal));
  }

  /** Tells the server that its session is over; the server may refuse. */
  close(): void {
    if (this.session) void this.fetch("DELETE", undefined).catch(() => {});
  }

  private checked(tool: { name?: unknown; description?: unknown; inputSchema?: unknown } | null): Tool {
    const { name, description, inputSchema } = tool ?? {};
    if (typeof name !== "string" || !name || typeof inputSchema !== "object" || inputSchema === null)
      throw new McpError(`${this.url} lists a tool without a name or a schema. Fix that server, or remove it here.`);
    const text = typeof description === "string" ? description : "";
    return { name, description: text, inputSchema: inputSchema as Record<string, unknown> };
  }

  /** Sends a request, and repeats it in a new session if the server has forgotten this one. */
  private async again(method: string, params: object, signal: AbortSignal): Promise<Record<string, unknown>> {
    try {
      return await this.ask(method, params, signal);
    } catch (error) {
      if (!(error instanceof ForgottenSession)) throw error;
      await this.open();
      return this.ask(method, params, signal);
    }
  }

  private async ask(method: string, params: object, signal: AbortSignal): Promise<Record<string, unknown>> {
    const id = ++this.lastId;
    try {
      const response = await this.send({ id, method, params }, signal);
      if (method === "initialize") this.session = response.headers.get("Mcp-Session-Id");
      for await (const message of messages(response, this.url)) {
        if (message.method) this.reply(message);
        else if (message.id === id) return this.resultOf(message);
      }
    } catch (error) {
      if (error instanceof McpError) throw error;
      if (!signal.aborted) throw this.cut();
      if (method !== "initialize") this.cancel(id);
      if ((error as Error).name === "AbortError") throw error;
      throw new McpError(`${this.url} has not answered for ${LONGEST_SETUP / 1000} seconds. Check that it still runs.`);
    }
    throw this.cut();
  }

  private resultOf({ result, error }: RpcMessage): Record<string, unknown> {
    if (typeof result === "object" && result !== null) return result;
    const said = `${String(error?.message ?? "nothing more").slice(0, 500)} (${error?.code ?? "no code"})`;
    throw new McpError(`${this.url} refused the request: ${said}. Check the values of the call.`);
  }

  /** Answers a server's requests during an answer: replies to pings, and refuses everything else. */
  private reply({ id, method }: RpcMessage): void {
    if (id === undefined || id === null) return;
    const error = { code: NO_SUCH_METHOD, message: "This client offers nothing to servers." };
    const body = method === "ping" ? { id, result: {} } : { id, error };
    void this.send(body, AbortSignal.timeout(LONGEST_SETUP)).catch(() => {});
  }

  private cancel(requestId: number): void {
    const method = "notifications/cancelled";
    void this.send({ method, params: { requestId } }, AbortSignal.timeout(LONGEST_SETUP)).catch(() => {});
  }

  private async send(message: object, signal: AbortSignal): Promise<Response> {
    const response = await this.fetch("POST", JSON.stringify({ jsonrpc: "2.0", ...message }), signal);
    if (response.ok) return response;
    const text = (await response.text().catch(() => "")).slice(0, 300);
    if (response.status === 404 && this.session) throw new ForgottenSession(`${this.url} has forgotten this session. Try again.`);
    throw new McpError(`${this.url} ${this.refusal(response.status)}${text && ` It says: ${text}`}`);
  }

  private async fetch(method: string, body: string | undefined, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { Accept: "application/json, text/event-stream" };
    if (body) headers["Content-Type"] = "application/json";
    if (this.authorization) headers.Authorization = this.authorization;
    if (this.session) headers["Mcp-Session-Id"] = this.session;
    if (this.version) headers["MCP-Protocol-Version"] = this.version;
    const keepalive = method === "DELETE";
    try {
      // Redirects are not followed, so that the Authorization header goes only to this address.
      return await fetch(this.url, { method, headers, body, signal, keepalive, redirect: "error", credentials: "omit" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new McpError(await this.whyNot());
    }
  }

  /** Explains a failed request. A browser does not give the reason, but reveals whether a server answers. */
  private async whyNot(): Promise<string> {
    if (!(await answersOthers(this.url))) return `${this.url} cannot be reached. Start this MCP server, or correct its address.`;
    return (
      `${this.url} does not let this page read its answers (CORS), or redirects elsewhere. Allow the origin ` +
      `${location.origin} there, with the methods POST and DELETE and the headers Authorization, Content-Type, ` +
      "Mcp-Session-Id and MCP-Protocol-Version, and let it expose Mcp-Session-Id."
    );
  }

  private refusal(status: number): string {
    if (status === 401) return "requires a valid Authorization header (401). Change it in the settings.";
    if (status === 403)
      return `refuses this page (403). Allow the origin ${location.origin} there, or change the Authorization header in the settings.`;
    if (status === 404) return "has no MCP server at this path (404). Correct its address; many end with /mcp.";
    if (status === 400 && this.version && !this.session)
      return "refuses this request (400). If it uses sessions, it must expose the header Mcp-Session-Id through CORS.";
    return `answered with status ${status}. Check its log.`;
  }

  private cut(): McpError {
    return new McpError(`The connection to ${this.url} was lost before the answer arrived. Try again.`);
  }
}

class ForgottenSession extends McpError {}
