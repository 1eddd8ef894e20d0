import { useState } from "preact/hooks";

import type { Conversation, Message } from "../conversations/types";
import { answer, append } from "./answering";

/** Fields for what the tools return that an answer calls; nothing is called by the page itself. */
export function ToolResults({ conversation, message }: { conversation: Conversation; message: Message }) {
  const calls = message.calls ?? [];
  const [results, setResults] = useState(calls.map(() => ""));
  const send = (event: Event) => {
    event.preventDefault();
    let changed = conversation;
    let parent = message;
    calls.forEach((call, index) => {
      const said = { role: "tool" as const, toolName: call.function.name, content: results[index]! };
      [changed, parent] = append(changed, { parent: parent.id, ...said });
    });
    answer(changed, parent.id, message.model ?? conversation.model);
  };
  return (
    <form class="card" onSubmit={send}>
      {calls.map((call, index) => (
        <label class="field" key={call.id ?? index}>
          Result of {call.function.name}
          <textarea
            rows={2}
            value={results[index]}
            onInput={(event) => setResults(results.map((old, place) => (place === index ? event.currentTarget.value : old)))}
          />
        </label>
      ))}
      <div class="row end">
        <button type="submit" class="primary">
          Return to the model
        </button>
      </div>
    </form>
  );
}
