// The model that the user chose last, kept in this browser, and the one that conversations without a model use.
import { signal } from "@preact/signals";

import { usualModel } from "./choice";
import { models, running } from "./list";

const NAME = "chaski.model";

/** An empty text before the first choice. */
export const chosenModel = signal(localStorage.getItem(NAME) ?? "");

export function rememberModel(name: string): void {
  chosenModel.value = name;
  localStorage.setItem(NAME, name);
}

/** The model that answers in a conversation: its own, or the usual one if it names none. */
export function modelOf(conversation: { model: string }): string {
  return conversation.model || usualModel(models.value, running.value, chosenModel.value);
}
