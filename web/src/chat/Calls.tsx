import type { Message } from "../conversations/types";
import { Code } from "../markdown/Code";
import { visible } from "../mcp/visible";

/** The tool calls of an answer. Arguments of MCP tools are folded: the question to the user shows them. */
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
