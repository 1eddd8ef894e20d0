// Conversations of Open WebUI's export: a tree of messages in `chat.history`.
import type { Conversation, Settings, TextFile } from "../conversations/types";
import { type Block, blocksOf, type Step, stepsOf } from "./blocks";
import type { Images } from "./images";
import { conversationOf, type Node } from "./tree";
import { idFrom, isObject, isText, listOf, objectOf, textOf, timeOf, type Values } from "./values";

const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "num_ctx"] as const;

export function isOfOpenWebUi(value: unknown): value is Values {
  if (!isObject(value)) return false;
  const chat = isObject(value.chat) ? value.chat : value;
  return isObject(objectOf(chat.history).messages);
}

/** The conversation, or null if it has no messages. */
export function ofOpenWebUi(value: Values, images: Images): Conversation | null {
  const chat = isObject(value.chat) ? value.chat : value;
  const history = objectOf(chat.history);
  const messages = Object.entries(objectOf(history.messages)).map(([id, each]) => ({ id, message: objectOf(each) }));
  const system = messages.find(({ message }) => message.role === "system")?.message.content;
  const models = listOf(chat.models).filter(isText);
  const nodes = messages.flatMap(({ id, message }) => nodesOf(id, message, turnsOf(message, models[0] ?? "", images)));
  const id = textOf(value.id) || textOf(chat.id) || `${timeOf(chat.timestamp)}${nodes[0]?.id}`;
  const head = {
    id: idFrom("openwebui", id),
    title: textOf(value.title) || textOf(chat.title),
    model: models[0] ?? "",
    settings: settingsOf(objectOf(chat.params), textOf(chat.system) || textOf(system)),
    created: timeOf(value.created_at) ?? timeOf(chat.timestamp),
    updated: timeOf(value.updated_at),
  };
  return conversationOf(head, nodes, textOf(history.currentId));
}

function settingsOf(params: Values, system: string): Settings {
  const numbers = NUMBERS.filter((name) => typeof params[name] === "number").map((name) => [name, params[name]]);
  return { ...(Object.fromEntries(numbers) as Settings), system: textOf(params.system) || system || undefined };
}

/** The nodes of a message: one for each turn, the last one with the message's own id, which its children know. */
function nodesOf(id: string, message: Values, turns: Node["turn"][]): Node[] {
  const ids = turns.map((_, index) => (index === turns.length - 1 ? id : `part${index}${id}`));
  const parent = isText(message.parentId) ? message.parentId : null;
  const created = timeOf(message.timestamp);
  return turns.map((turn, index) => ({ id: ids[index]!, parent: ids[index - 1] ?? parent, created, turn }));
}

/** The turns of a message; one is null if it is not shown. */
function turnsOf(message: Values, model: string, images: Images): Node["turn"][] {
  const { content, pictures } = partsOf(message.content);
  const files = listOf(message.files).map(objectOf);
  const addresses = files.filter((file) => file.type === "image" || textOf(file.content_type).startsWith("image/"));
  const all = [...addresses.map(({ url, name }) => ({ url: textOf(url), name: textOf(name) })), ...pictures];
  const found = all.map(({ url, name }) => {
    const called = name || (url.startsWith("data:") ? "an image" : url.slice(0, 80) || "an image");
    return images.ofData(url, called) ?? `[Image ${called} is not in the export.]`;
  });
  const lost = found.filter((each) => each.startsWith("["));
  const shown = found.filter((each) => !each.startsWith("["));
  const texts = files.filter((file) => !addresses.includes(file)).flatMap(textFile);
  const whole = {
    content: [...lost, content].filter(Boolean).join("\n\n"),
    images: shown.length ? shown : undefined,
    files: texts.length ? texts : undefined,
  };
  if (message.role === "user") return [{ role: "user", ...whole }];
  if (message.role !== "assistant") return [null];
  const error = textOf(objectOf(message.error).content) || textOf(message.error);
  const name = textOf(message.model) || textOf(message.modelName) || model;
  const steps = stepsOf(withThought(blocksOf(message, whole.content), textOf(message.reasoning_content)));
  const turns = steps.flatMap((step) => turnsOfStep(step, name));
  if (turns.at(-1)!.role === "tool" && (error || shown.length || texts.length)) turns.push(answered("", name));
  const last = turns.at(-1)!;
  if (last.role === "assistant") Object.assign(last, { images: whole.images, files: whole.files, error: error || undefined });
  return turns;
}

function withThought(blocks: Block[], thought: string): Block[] {
  return thought ? [{ thought }, ...blocks.filter((block) => !("thought" in block))] : blocks;
}

type Turn = NonNullable<Node["turn"]>;

function turnsOfStep({ content, thinking, calls, results }: Step, model: string): Turn[] {
  const answer = { ...answered(content, model), thinking: thinking || undefined, calls: calls.length ? calls : undefined };
  return [answer, ...results.map((result): Turn => ({ role: "tool", ...result }))];
}

function answered(content: string, model: string): Turn {
  return { role: "assistant", content, model };
}

function partsOf(value: unknown): { content: string; pictures: { url: string; name: string }[] } {
  if (isText(value)) return { content: value, pictures: [] };
  const parts = listOf(value).map(objectOf);
  const pictures = parts.filter((part) => part.type === "image_url");
  return {
    content: parts.map((part) => textOf(part.text)).join(""),
    pictures: pictures.map((part) => ({ url: textOf(objectOf(part.image_url).url), name: "" })),
  };
}

function textFile(file: Values): TextFile[] {
  const name = textOf(file.name) || textOf(objectOf(file.file).filename) || "file";
  const text = objectOf(objectOf(file.file).data).content;
  return isText(text) ? [{ name, text }] : [];
}
