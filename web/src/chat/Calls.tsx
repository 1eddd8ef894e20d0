import type { Message } from "../conversations/types";
import { Code } from "../markdown/Code";
import { visible } from "../mcp/visible";

/** What an answer calls. Values for tools of MCP servers are folded: they are shown where the user is asked. */
export function Calls({ calls = [], remote = {} }: Pick<Message, "calls" | "remote">) {
  return (
    <div class="calls">
      {calls.map(({ id, function: { name, arguments: values } }, index) => {
        const place = remote[name];
        const code = <Code text={JSON.stringify(values, null, 2)} language="json" />;
        if (!place)
          return (
            <div class="call" key={id ?? index}>
              <div class="name">
                calls <strong>{name}</strong>
              </div>
              {code}
            </div>
          );
        return (
          <details class="call name" key={id ?? index}>
            <summary>
              calls <strong>{visible(place.tool)}</strong> of <bdi>{visible(place.server)}</bdi>
            </summary>
            {code}
          </details>
        );
      })}
    </div>
  );
}
