// Which model a conversation begins with, which models a search finds, and what a model cannot do.
import type { ListedModel, RunningModel } from "../server/types";

/** What a conversation needs of its model. */
export interface Needs {
  images?: boolean;
  tools?: boolean;
  thinking?: boolean;
  /** Characters of the next question and its files. */
  characters?: number;
}

export interface Misfit {
  /** A sentence without its subject, which is the model's name. */
  problem: string;
  /** Whether the server would refuse the question. */
  isRefused: boolean;
}

/** Of a token in most languages, on average; enough to notice a text that is far too long. */
const CHARACTERS_EACH = 4;

export function chats(model: ListedModel): boolean {
  return model.capabilities.includes("completion");
}

/** The chosen model if it can chat; else one in memory, the newest one, or the one that is a part of chaski. */
export function usualModel(models: ListedModel[], loaded: RunningModel[], chosen: string): string {
  if (!models.length) return chosen;
  const talking = models.filter(chats);
  const own = talking.filter((model) => !model.bundled);
  const inMemory = own.find((model) => loaded.some(({ name }) => name === model.name));
  const found = talking.find((model) => model.name === chosen) ?? inMemory ?? own[0] ?? talking[0];
  return found?.name ?? "";
}

/** The models that have all words of a search in their name, size, quantization or capabilities; chat models first. */
export function matching(models: ListedModel[], search: string): ListedModel[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = models.filter((model) => {
    const text = described(model).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return [...found.filter(chats), ...found.filter((model) => !chats(model))];
}

function described({ name, details, capabilities }: ListedModel): string {
  return [name, details.family, details.parameter_size, details.quantization_level, ...capabilities].join(" ");
}

/** What a model cannot do that a conversation needs. `model` is absent if the server does not list it. */
export function misfits(model: ListedModel | undefined, needs: Needs): Misfit[] {
  // Names of adapters are models that the server does not list.
  if (!model) return [{ problem: "is not on this server", isRefused: false }];
  const able = model.capabilities;
  const cannot = able.includes("rerank")
    ? "ranks texts and cannot chat"
    : able.includes("embedding")
      ? "makes vectors of texts and cannot chat"
      : chats(model)
        ? ""
        : "cannot be read; its entry in Models says why";
  if (cannot) return [{ problem: cannot, isRefused: true }];
  const tokens = Math.round((needs.characters ?? 0) / CHARACTERS_EACH);
  const context = model.details.context_length || Number.POSITIVE_INFINITY;
  const found = [
    { is: needs.images && !able.includes("vision"), problem: "does not see images", isRefused: true },
    { is: needs.tools && !able.includes("tools"), problem: "does not use tools, which the settings offer", isRefused: true },
    { is: needs.thinking && !able.includes("thinking"), problem: "does not think, which the settings ask for", isRefused: true },
    {
      is: tokens > context,
      problem: `reads at most ${context.toLocaleString("en")} tokens, and this is about ${tokens.toLocaleString("en")}`,
      isRefused: false,
    },
  ];
  return found.filter(({ is }) => is).map(({ problem, isRefused }) => ({ problem, isRefused }));
}

/** Whether two spellings of a name mean the same model: the case and the tag `latest` do not matter. */
export function isSameName(one: string, other: string): boolean {
  return whole(one) === whole(other);
}

function whole(name: string): string {
  const lower = name.trim().toLowerCase();
  return /:[^/]*$/.test(lower) ? lower : `${lower}:latest`;
}
