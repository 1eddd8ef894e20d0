import { giveResults } from "../chat/results";
import type { Message, RemoteTool } from "../conversations/types";
import { Code } from "../markdown/Code";
import type { Call } from "../server/types";
import { run, runs } from "./calls";
import { visible } from "./visible";

interface Props {
  id: string;
  branch: Message;
  remote: RemoteTool;
  call: Call;
  /** The number of calls that wait after this one. */
  more: number;
}

/** Asks whether a tool of an MCP server may run once. */
export function RemoteCall({ id, branch, remote, call, more }: Props) {
  const { stop, problem } = runs.value[branch.id] ?? {};
  const refuse = () => {
    const content = problem ? `The call failed: ${problem}` : "The user refused this call.";
    giveResults(id, branch, [{ toolName: call.function.name, content }]);
  };
  const name = visible(remote.tool);
  return (
    <section class="card call-question" aria-label={`Call of ${name}`}>
      <p role="alert">
        {stop ? "Running " : "Run "}
        <strong>{name}</strong> of <bdi>{visible(remote.server)}</bdi>
        {stop ? "…" : " with these values?"}
      </p>
      <Code text={visible(JSON.stringify(call.function.arguments, null, 2))} language="json" />
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <div class="row end">
        {more > 0 && <span class="note">{more} more to decide</span>}
        {stop ? (
          <button type="button" onClick={stop}>
            Stop
          </button>
        ) : (
          <>
            <button type="button" onClick={refuse}>
              {problem ? "Return the error" : "Refuse"}
            </button>
            <button type="button" class="primary" onClick={() => void run(id, branch, remote, call)}>
              Run once
            </button>
          </>
        )}
      </div>
    </section>
  );
}
