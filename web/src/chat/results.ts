// Results of called tools. They join the branch, and the model continues when no call is open.
import { add, conversations } from "../conversations/store";
import { newMessage, openCalls, path } from "../conversations/tree";
import type { Message } from "../conversations/types";
import { modelOf } from "../models/chosen";
import { answer } from "./answering";

export type Result = Pick<Message, "content" | "images" | "toolName">;

/** Adds results after the last message of a branch. If another branch is shown by now, it stays visible. */
export function giveResults(id: string, branch: Message, results: Result[]): void {
  const conversation = conversations.value[id];
  if (!conversation?.messages[branch.id]) return;
  const turns = path(conversation, branch.id);
  const added: Message[] = [];
  for (const result of results) added.push(newMessage((added.at(-1) ?? branch).id, { role: "tool", ...result }));
  const asked = turns.findLast((turn) => turn.role === "assistant");
  if (conversation.leaf !== branch.id) add(id, added, conversation.leaf);
  else if (openCalls([...turns, ...added])) add(id, added, added.at(-1)!.id);
  else answer(id, added, asked?.model ?? modelOf(conversation));
}
