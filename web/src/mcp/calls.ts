// Calls of tools on MCP servers. Each call runs only when the user allows it.
import { signal } from "@preact/signals";

import { giveResults } from "../chat/results";
import type { Message, RemoteTool } from "../conversations/types";
import type { Call } from "../server/types";
import { runTool } from "./servers";

export interface Run {
  /** Ends the call; defined while it runs. */
  stop?: () => void;
  problem?: string;
}

/** Calls that run or have failed, by the message that their results follow. */
export const runs = signal<Record<string, Run>>({});

export async function run(id: string, branch: Message, remote: RemoteTool, call: Call): Promise<void> {
  const control = new AbortController();
  note(branch.id, { stop: () => control.abort() });
  try {
    const result = await runTool(remote, call.function.arguments, control.signal);
    note(branch.id, {});
    giveResults(id, branch, [{ toolName: call.function.name, ...result }]);
  } catch (error) {
    const stopped = "Stopped. What the tool did until then is not known.";
    note(branch.id, { problem: control.signal.aborted ? stopped : (error as Error).message });
  }
}

function note(key: string, run: Run): void {
  runs.value = { ...runs.value, [key]: run };
}
