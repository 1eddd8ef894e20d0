// The numeric options of the settings: their labels, ranges, meanings and defaults.
import type { Settings } from "../conversations/types";
import type { ShownModel } from "../server/types";
import {
  frequency_penalty,
  min_p,
  num_ctx,
  num_predict,
  OLLAMA_KEEP_ALIVE,
  presence_penalty,
  repeat_penalty,
  seed,
  temperature,
  top_k,
  top_logprobs,
  top_p,
} from "./options.json";

/** A row of the server's table of options, from which `make docs` writes options.json. */
export interface Facts {
  min?: number;
  /** `min` itself is not allowed. */
  is_above?: boolean;
  max?: number;
  default?: number;
  /** What happens without the option, if `default` is absent. */
  unset?: string;
  is_integer: boolean;
  meaning: string;
}

export interface NumberOption extends Facts {
  name: NumberName;
  label: string;
  step: number;
  /** The ends of the slider; absent if the option has none. */
  slider?: [least: number, most: number];
}

export type NumberName = {
  [Name in keyof Settings]-?: NonNullable<Settings[Name]> extends number ? Name : never;
}[keyof Settings];

function option(name: NumberName, label: string, facts: Facts, slider?: [number, number], step?: number): NumberOption {
  return { ...facts, name, label, slider, step: step ?? (facts.is_integer ? 1 : 0.05) };
}

export const SAMPLING: NumberOption[] = [
  option("temperature", "Temperature", temperature, [0, 2]),
  option("top_p", "Top p", top_p, [0, 1], 0.01),
  option("top_k", "Top k", top_k, [0, 100]),
  option("min_p", "Min p", min_p, [0, 1], 0.01),
  option("repeat_penalty", "Repeat penalty", repeat_penalty, [0.5, 2]),
  option("presence_penalty", "Presence penalty", presence_penalty, [-2, 2]),
  option("frequency_penalty", "Frequency penalty", frequency_penalty, [-2, 2]),
  option("seed", "Seed", seed),
];
export const LENGTH: NumberOption[] = [
  option("num_predict", "Longest answer", num_predict),
  option("num_ctx", "Context", num_ctx),
];
export const ALTERNATIVES: NumberOption = {
  ...option("alternatives", "Alternatives by token", top_logprobs, [0, top_logprobs.max]),
  default: undefined,
  unset: "none",
  meaning: "number of other tokens to show for each token of an answer",
};

/** How long a model stays loaded: the meaning and the default of the server's variable. */
export const KEEP_ALIVE = OLLAMA_KEEP_ALIVE;

/** The values that a model sets itself, by the names of the options. */
export function parametersOf(model: ShownModel | null): Record<string, number> {
  const lines = (model?.parameters ?? "").split("\n").map((line) => line.trim().split(/\s+/));
  const numbers = lines.filter(([, value, ...more]) => value && !more.length && Number.isFinite(Number(value)));
  return Object.fromEntries(numbers.map(([name, value]) => [name, Number(value)]));
}

/** The tokens of context that a model was trained for, if its file says so. */
export function trainedContext(model: ShownModel | null): number | undefined {
  const found = Object.entries(model?.model_info ?? {}).find(([name]) => name.endsWith(".context_length"));
  return typeof found?.[1] === "number" ? found[1] : undefined;
}

/** What happens without a setting, and whether the model decides it. */
export function defaultOf(option: NumberOption, parameters: Record<string, number>): { value?: number; isOfModel: boolean } {
  const own = parameters[option.name];
  return own === undefined ? { value: option.default, isOfModel: false } : { value: own, isOfModel: true };
}

/** A meaning of the table as a sentence. */
export function sentence(meaning: string): string {
  return `${meaning[0]!.toUpperCase()}${meaning.slice(1)}.`;
}
