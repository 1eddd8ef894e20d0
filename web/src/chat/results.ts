// Results of called tools: they join the branch, and the model goes on when no call is open.
import { conversations, put } from "../conversations/store";
import { openCalls, path } from "../conversations/tree";
import type { Message } from "../conversations/types";
import { answer, append } from "./answering";

export type Result = Pick<Message, "content" | "images" | "toolName">;

/** Adds results behind the last message of a branch. Where another branch is shown by now, it stays so. */
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
