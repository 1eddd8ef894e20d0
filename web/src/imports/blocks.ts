// The parts of an answer of Open WebUI: its text has elements for thoughts, calls of tools, and programs that ran.
import type { Call } from "../server/types";
import { isObject, isText, listOf, objectOf, textOf, type Values } from "./values";

/** Part of an answer. A call's result is null if the export has none. */
export type Block = { text: string } | { thought: string } | { call: Call; result: string | null };

/** The turns of one answer: each answer with calls, their results, and the last answer. */
export interface Step {
  content: string;
  thinking: string;
  calls: Call[];
  results: { toolName: string; content: string }[];
}

/** The parts of an answer: of its list `output`, which newer versions keep, if its text shows no calls. */
export function blocksOf(message: Values, text: string): Block[] {
  const found = blocksOfText(text);
  const output = listOf(message.output).map(objectOf);
  const isComplete = found.some((block) => "call" in block) || !output.some((item) => item.type === "function_call");
  return isComplete ? found : blocksOfOutput(output);
}

export function stepsOf(blocks: Block[]): Step[] {
  const steps: Step[] = [];
  let step = emptyStep();
  for (const block of blocks) {
    if ("call" in block) {
      const toolName = block.call.function.name;
      step.calls.push(block.call);
      step.results.push({ toolName, content: block.result ?? "[The result of this call is not in the export.]" });
      continue;
    }
    if (!("thought" in block) && !block.text.trim()) continue;
    if (step.calls.length) {
      steps.push(step);
      step = emptyStep();
    }
    if ("thought" in block) step.thinking = [step.thinking, block.thought].filter(Boolean).join("\n\n");
    else step.content += block.text;
  }
  return [...steps, step].map((each) => ({ ...each, content: each.content.trim() }));
}

function emptyStep(): Step {
  return { content: "", thinking: "", calls: [], results: [] };
}

function blocksOfText(text: string): Block[] {
  const pieces = text.split(/<details\s+type="(reasoning|tool_calls|code_interpreter)"([^>]*)>/);
  const found: Block[] = [{ text: pieces[0]! }];
  for (let at = 1; at < pieces.length; at += 3) {
    const [inner, ...after] = pieces[at + 2]!.split("</details>");
    const body = unescaped(inner!.replace(/^\s*<summary>[^<]*<\/summary>/, "")).trim();
    const given = attributes(pieces[at + 1]!);
    if (pieces[at] === "reasoning") found.push({ thought: body.replace(/^> ?/gm, "").trim() });
    else if (pieces[at] === "tool_calls") found.push(calledTool(given, body));
    else found.push(ranProgram(body.replace(/^```\w*\n|\n?```$/g, ""), given.output));
    found.push({ text: after.join("</details>") });
  }
  return found;
}

function calledTool(given: Record<string, string>, body: string): Block {
  const result = given.result || body;
  return { call: callOf(given.name ?? "", given.arguments ?? "", given.id), result: result ? shown(parsed(result)) : null };
}

function ranProgram(code: string, output: unknown): Block {
  const call = { function: { name: "code_interpreter", arguments: { code } } };
  return { call, result: output ? shown(parsed(output)) : null };
}

function blocksOfOutput(output: Values[]): Block[] {
  const results = new Map(
    output.filter(({ type }) => type === "function_call_output").map((item) => [item.call_id, item.output]),
  );
  return output.flatMap((item): Block[] => {
    switch (item.type) {
      case "message":
        return [{ text: partsText(item.content) }];
      case "reasoning":
        return [{ thought: partsText(item.content) || partsText(item.summary) }];
      case "function_call": {
        const call = callOf(textOf(item.name), item.arguments, textOf(item.call_id));
        const result = results.get(item.call_id);
        return [{ call, result: result === undefined ? null : partsText(result) || shown(parsed(result)) }];
      }
      case "open_webui:code_interpreter":
        return [ranProgram(textOf(item.code), item.output)];
      default:
        return [];
    }
  });
}

function partsText(parts: unknown): string {
  return listOf(parts)
    .map((part) => textOf(objectOf(part).text))
    .join("");
}

function callOf(name: string, given: unknown, id?: string): Call {
  const values = parsed(parsed(given));
  const called = { name: name || "tool", arguments: isObject(values) ? values : values ? { input: values } : {} };
  return id ? { id, function: called } : { function: called };
}

/** The value of a JSON text; a text that is none, and other values, stay as they are. */
function parsed(value: unknown): unknown {
  if (!isText(value)) return value;
  try {
    return JSON.parse(value) as unknown;
  } catch {
    return value;
  }
}

function shown(value: unknown): string {
  return isText(value) ? value : JSON.stringify(value, null, 2);
}

function attributes(text: string): Record<string, string> {
  return Object.fromEntries([...text.matchAll(/(\w+)="([^"]*)"/g)].map(([, name, value]) => [name, unescaped(value!)]));
}

function unescaped(text: string): string {
  const names: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&#39;": "'", "&amp;": "&" };
  return text.replace(/&(?:lt|gt|quot|#x27|#39|amp);/g, (name) => names[name]!);
}
