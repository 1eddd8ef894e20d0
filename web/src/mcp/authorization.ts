// Authorization headers for MCP servers, one per address, stored in the same way as the server's API key.

const NAME = "chaski.mcp";

type Headers = Record<string, string>;

export function readAuthorization(url: string): string {
  return read(sessionStorage)[url] ?? read(localStorage)[url] ?? "";
}

/** Keeps a header for this tab or for this browser; deletes an empty one. */
export function keepAuthorization(url: string, value: string, stays = false): void {
  for (const storage of [sessionStorage, localStorage]) {
    const { [url]: _, ...others } = read(storage);
    if (value && storage === (stays ? localStorage : sessionStorage)) others[url] = value;
    if (Object.keys(others).length) storage.setItem(NAME, JSON.stringify(others));
    else storage.removeItem(NAME);
  }
}

function read(storage: Storage): Headers {
  try {
    return JSON.parse(storage.getItem(NAME) ?? "{}") as Headers;
  } catch {
    return {};
  }
}
