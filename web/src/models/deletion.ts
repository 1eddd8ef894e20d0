// Describes the deletion of a model, in sentences that are true for the model and its store.
import type { ListedModel } from "../server/types";
import { isSameName } from "./choice";
import { bytes } from "./list";

export function deletionText(model: ListedModel, isLoaded: boolean): string {
  const { name, size, freed_bytes: freed } = model;
  const sentences = [];
  if (freed === undefined) sentences.push("");
  else if (freed >= size) sentences.push(`This frees ${bytes(freed)} of the server's disk.`);
  else if (freed > 0)
    sentences.push(
      `This frees ${bytes(freed)} of the server's disk; the other ${bytes(size - freed)} are used elsewhere and stay.`,
    );
  else sentences.push(`This frees no space on the server's disk: its ${bytes(size)} are used elsewhere, or kept by a setting.`);
  if (isLoaded) sentences.push("It is in memory, and leaves it after its running answers.");
  if (isSameName(name, "guide")) sentences.push("The guide that is a part of chaski gets its name back.");
  else sentences.push("To use it again, you must pull or make it again.");
  return sentences.filter(Boolean).join(" ");
}

/** What happens to the model that has the name of a new one already; empty if there is none. */
export function replacementText(models: ListedModel[], name: string): string {
  const before = models.find((model) => name.trim() && isSameName(model.name, name));
  if (!before) return "";
  if (before.bundled) return `${before.name} is a part of chaski. Choose another name for your model.`;
  return `${before.name} exists, and is replaced.`;
}
