// The model that the user chose last, kept in this browser.
import { signal } from "@preact/signals";

const NAME = "chaski.model";

/** An empty text before the first choice. */
export const chosenModel = signal(localStorage.getItem(NAME) ?? "");

export function rememberModel(name: string): void {
  chosenModel.value = name;
  localStorage.setItem(NAME, name);
}
