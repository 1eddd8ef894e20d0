// Checks which MCP servers this page may reach. The operator decides, and the page's policy lists them.

/** Hosts that a page over https may request over http: this machine. */
const LOCAL = /^(localhost|127\.[\d.]+|.*\.localhost)$/;

/** Origins that the policy of this page allows in addition to its own server. */
export async function allowedOrigins(): Promise<string[]> {
  const response = await fetch("/", { method: "HEAD", headers: { Accept: "text/html" }, cache: "no-store" });
  const policy = response.headers.get("Content-Security-Policy") ?? "";
  const sources = /connect-src ([^;]*)/.exec(policy)?.[1]?.split(" ") ?? [];
  return sources.filter((source) => source !== "'self'").map((source) => new URL(source).origin);
}

/** Returns the problem of a server's address, or an empty string if this page may reach it. */
export async function problemOfAddress(text: string): Promise<string> {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !/^https?:$/.test(url.protocol)) return `${text} is not an address. Enter one such as http://localhost:8000/mcp.`;
  if (url.username || url.password)
    return `${url.host}: remove the password from the address. Use an Authorization header, such as Basic or Bearer.`;
  if (location.protocol === "https:" && url.protocol === "http:" && !LOCAL.test(url.hostname))
    return `${url.origin} uses plain http, which browsers block for a page over https. Serve it over https.`;
  const allowed = await allowedOrigins();
  if (allowed.includes(url.origin)) return "";
  return (
    `This page may not reach ${url.origin}: the operator of this server has not allowed it. Start the server with ` +
    `CHASKI_MCP_SERVERS=${[...allowed, url.origin].join(",")}, and reload this page.`
  );
}

/** Whether anything answers at an address, even if this page may not read it. */
export async function answersOthers(url: string): Promise<boolean> {
  try {
    await fetch(url, { method: "HEAD", mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(5000) });
    return true;
  } catch {
    return false;
  }
}
