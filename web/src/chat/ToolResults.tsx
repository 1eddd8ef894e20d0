import { useDraft } from "../conversations/drafts";
import type { Conversation, Message } from "../conversations/types";
import { RemoteCall } from "../mcp/RemoteCall";
import type { Call } from "../server/types";
import { giveResults } from "./results";

interface Props {
  conversation: Conversation;
  /** The message after which results are added: an answer, or a result of one of its calls. */
  branch: Message;
  asked: Message;
  calls: Call[];
}

/** Asks for the results of an answer's calls, in their order. */
export function ToolResults({ conversation, branch, asked, calls }: Props) {
  const remotes = calls.map((call) => {
    const remote = asked.remote?.[call.function.name];
    return remote && conversation.settings.mcp?.includes(remote.server) ? remote : undefined;
  });
  const [remote] = remotes;
  const place = remotes.findIndex(Boolean);
  if (remote)
    return (
      <RemoteCall key={branch.id} id={conversation.id} branch={branch} remote={remote} call={calls[0]!} more={calls.length - 1} />
    );
  const typed = place < 0 ? calls : calls.slice(0, place);
  return <TypedResults key={branch.id} id={conversation.id} branch={branch} calls={typed} />;
}

/** Fields for the results of tools that this page does not call. */
function TypedResults({ id, branch, calls }: { id: string; branch: Message; calls: Call[] }) {
  const [results = calls.map(() => ""), setResults] = useDraft<string[]>(`${id}/${branch.id}`);
  const send = (event: Event) => {
    event.preventDefault();
    giveResults(
      id,
      branch,
      calls.map((call, index) => ({ toolName: call.function.name, content: results[index]! })),
    );
    setResults(() => undefined);
  };
  return (
    <form class="card" onSubmit={send}>
      {calls.map((call, index) => (
        <label class="field" key={call.id ?? index}>
          Result of {call.function.name}
          <textarea
            rows={2}
            value={results[index]}
            onInput={(event) => {
              const { value } = event.currentTarget;
              setResults(() => results.map((old, place) => (place === index ? value : old)));
            }}
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
