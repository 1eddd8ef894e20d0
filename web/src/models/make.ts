// Makes models from other models: with their own system prompt and parameters, or under a second name.
import { lines, request } from "../server/requests";
import { readModels } from "./list";

export interface Recipe {
  name: string;
  from: string;
  system: string;
  parameters: string;
  template: string;
}

/** Makes a model and reports its steps; an aborted `signal` ends it. Throws an Error that describes a problem. */
export async function createModel(recipe: Recipe, onStep: (step: string) => void, signal: AbortSignal): Promise<void> {
  const body = {
    model: recipe.name,
    from: recipe.from,
    system: recipe.system || undefined,
    template: recipe.template || undefined,
    parameters: recipe.parameters.trim() ? readParameters(recipe.parameters) : undefined,
  };
  const steps = lines<{ status: string }>(await request("POST", "/api/create", body, signal));
  for await (const { status } of steps) onStep(status);
  await readModels();
}

export async function copyModel(source: string, destination: string): Promise<void> {
  await request("POST", "/api/copy", { source, destination });
  await readModels();
}

/** Reads lines of a name and a value as in a Modelfile; a repeated name gives a list. */
function readParameters(text: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const line of text.split("\n").map((each) => each.trim())) {
    if (!line) continue;
    const [, name, written] = /^(\w+)\s+(.+)$/.exec(line) ?? [];
    if (!name || !written) throw new Error(`“${line}” is not a name and a value.`);
    const value = parsed(written);
    const before = found[name];
    if (name === "stop") found[name] = [...((before as unknown[] | undefined) ?? []), String(value)];
    else found[name] = value;
  }
  return found;
}

function parsed(written: string): unknown {
  try {
    return JSON.parse(written) as unknown;
  } catch {
    return written;
  }
}
