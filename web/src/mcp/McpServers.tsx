import { useEffect, useRef, useState } from "preact/hooks";

import { conversations } from "../conversations/store";
import { Icon } from "../shell/Icon";
import { keepAuthorization } from "./authorization";
import type { Tool } from "./connection";
import { allowedOrigins, problemOfAddress } from "./reach";
import { disconnect, listTools } from "./servers";
import { visible } from "./visible";

/** The MCP servers of a conversation with their tools or problems, and a form to add a server. */
export function McpServers({ urls, onChange }: { urls: string[]; onChange: (urls: string[]) => void }) {
  const [address, setAddress] = useState("");
  const [header, setHeader] = useState("");
  const [stays, setStays] = useState(false);
  const [problem, setProblem] = useState("");
  // Counts up when a header changes, so that the entries ask again.
  const [version, setVersion] = useState(0);
  const headerField = useRef<HTMLInputElement>(null);

  const add = async (event: Event) => {
    event.preventDefault();
    const url = address.trim();
    const found = problemOfHeader(header.trim()) || (await problemOfAddress(url).catch((error: Error) => error.message));
    setProblem(found);
    if (found) return;
    keepAuthorization(url, header.trim(), stays);
    disconnect(url);
    setVersion(version + 1);
    setAddress("");
    setHeader("");
    if (!urls.includes(url)) onChange([...urls, url]);
  };
  const remove = (url: string) => {
    const others = Object.values(conversations.value).filter(({ settings }) => settings.mcp?.includes(url));
    if (others.length < 2) keepAuthorization(url, "");
    disconnect(url);
    onChange(urls.filter((each) => each !== url));
  };
  return (
    <form class="servers" aria-label="MCP servers" onSubmit={(event) => void add(event)}>
      <span class="label">MCP servers whose tools the model may call</span>
      {urls.map((url) => (
        <Entry
          key={url + version}
          url={url}
          onHeader={() => {
            setAddress(url);
            headerField.current?.focus();
          }}
          onRemove={() => remove(url)}
        />
      ))}
      <div class="server-fields">
        <label class="field">
          Address
          <input
            placeholder="http://localhost:8000/mcp"
            value={address}
            onInput={(event) => setAddress(event.currentTarget.value)}
            spellcheck={false}
          />
        </label>
        <label class="field">
          Authorization header, if any
          <input
            ref={headerField}
            type="password"
            autocomplete="off"
            placeholder="Bearer …"
            value={header}
            onInput={(event) => setHeader(event.currentTarget.value)}
          />
        </label>
      </div>
      {header && (
        <label class="check">
          <input type="checkbox" checked={stays} onChange={(event) => setStays(event.currentTarget.checked)} />
          Keep the header in this browser instead of only this tab
        </label>
      )}
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {!urls.length && <Allowed />}
      <div class="row end">
        <button type="submit" disabled={!address.trim()}>
          {urls.includes(address.trim()) ? "Change the server" : "Add the server"}
        </button>
      </div>
    </form>
  );
}

function Entry({ url, onHeader, onRemove }: { url: string; onHeader: () => void; onRemove: () => void }) {
  const [tools, setTools] = useState<Tool[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => void listTools(url).then(setTools, (error: Error) => setProblem(error.message)), [url]);
  return (
    <div class="server" role="group" aria-label={url}>
      <div class="row">
        <bdi class="address">{visible(url)}</bdi>
        <button type="button" class="icon-button" aria-label={`Change the header of ${url}`} onClick={onHeader}>
          <Icon name="edit" />
        </button>
        <button type="button" class="icon-button" aria-label={`Remove ${url}`} onClick={onRemove}>
          <Icon name="trash" />
        </button>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {!problem && !tools && (
        <p class="note" role="status">
          Loading its tools…
        </p>
      )}
      {tools && (
        <details>
          <summary>{tools.length === 1 ? "1 tool" : `${tools.length} tools`}</summary>
          <dl>
            {tools.map((tool) => (
              <div key={tool.name}>
                <dt>{visible(tool.name)}</dt>
                <dd>{visible(tool.description)}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  );
}

function Allowed() {
  const [origins, setOrigins] = useState<string[] | null>(null);
  useEffect(() => void allowedOrigins().then(setOrigins, () => {}), []);
  if (!origins) return null;
  return (
    <p class="note">
      {origins.length
        ? `This page may reach the servers at ${origins.join(", ")}.`
        : "This page may not reach any: the operator of this server allows them with CHASKI_MCP_SERVERS."}
    </p>
  );
}

function problemOfHeader(value: string): string {
  try {
    new Headers({ Authorization: value });
    return "";
  } catch {
    return "This is not a valid header: it contains a line break or non-Latin characters. Enter it as the server expects it.";
  }
}
