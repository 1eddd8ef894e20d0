// The API key for the server, kept for this tab, or in this browser if the user chooses so.
import { signal } from "@preact/signals";

const NAME = "chaski.key";

/** Why the page asks for a key: the server has refused a request, or the user wants another one. */
export const wantsKey = signal<"refused" | "other" | null>(null);

export function readKey(): string {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
}

export function keepKey(key: string, stays: boolean): void {
  forgetKey();
  (stays ? localStorage : sessionStorage).setItem(NAME, key);
  wantsKey.value = null;
}

export function forgetKey(): void {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}
