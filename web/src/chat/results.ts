// Results of called tools. They join the branch, and the model continues when no call is open.
import { conversations, put } from "../conversations/store";
import { openCalls, path } from "../conversations/tree";
import type { Message } from "../conversations/types";
import { answer, append } from "./answering";

export type Result = Pick<Message, "content" | "images" | "toolName">;

/** Adds results after the last message of a branch. If another branch is shown by now, it stays visible. */
export function giveResults(id: string, branch: Message, results: Result[]): void {
  const conversation = conversations.value[id];
  if (!conversation?.messages[branch.id]) return;
  let changed = conversation;
  let last = branch;
  for (const result of results) [changed, last] = append(changed, { parent: last.id, role: "tool", ...result });
  const turns = path(changed);
  const asked = turns.findLast((turn) => turn.role === "assistant");
  if (conversation.leaf !== branch.id) put({ ...changed, leaf: conversation.leaf });
  else if (openCalls(turns)) put(changed);
  else answer(changed, last.id, asked?.model ?? changed.model);
}
