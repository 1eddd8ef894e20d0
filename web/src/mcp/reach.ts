// Which MCP servers this page may reach: the operator says so, and the page's own policy has it.

/** Hosts that a page over https may ask without it: this machine. */
const LOCAL = /^(localhost|127\.[\d.]+|.*\.localhost)$/;

/** Origins that the policy of this page allows besides its own server. */
export async function allowedOrigins(): Promise<string[]> {
  const response = await fetch("/", { method: "HEAD", headers: { Accept: "text/html" }, cache: "no-store" });
  const policy = response.headers.get("Content-Security-Policy") ?? "";
  const sources = /connect-src ([^;]*)/.exec(policy)?.[1]?.split(" ") ?? [];
  return sources.filter((source) => source !== "'self'").map((source) => new URL(source).origin);
}

/** Says what is wrong with the address of a server; nothing, where this page may ask there. */
export async function problemOfAddress(text: string): Promise<string> {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !/^https?:$/.test(url.protocol)) return `${text} is no address. Write one such as http://localhost:8000/mcp.`;
  if (url.username || url.password)
    return `${url.host}: an address holds no password here. Write it as an Authorization header, such as Basic or Bearer.`;
  if (location.protocol === "https:" && url.protocol === "http:" && !LOCAL.test(url.hostname))
    return `${url.origin} speaks plain http, which browsers refuse to a page over https. Give that server https.`;
  const allowed = await allowedOrigins();
  if (allowed.includes(url.origin)) return "";
  return (
    `This page may not reach ${url.origin}: the operator of this server has not allowed it. Start the server with ` +
    `CHASKI_MCP_SERVERS=${[...allowed, url.origin].join(",")}, and load this page again.`
  );
}

/** Whether anything answers at an address, if only to others than this page. */
export async function answersOthers(url: string): Promise<boolean> {
  try {
    await fetch(url, { method: "HEAD", mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(5000) });
    return true;
  } catch {
    return false;
  }
}
