// Well-known models to pull; the server adds which of them fit into its memory.
import { signal } from "@preact/signals";

import { json } from "../server/requests";
import type { SuggestedModel, Suggestions } from "../server/types";

export const suggestions = signal<Suggestions | null>(null);
export const suggestionsProblem = signal("");

const STALE = 60_000;
let readAt = 0;
let reading: Promise<void> | undefined;

/** Reads the list, and again after a minute, since the available memory changes. */
export function readSuggestions(): Promise<void> {
  if (suggestions.value && Date.now() - readAt < STALE) return Promise.resolve();
  reading ??= json<Suggestions>("GET", "/api/suggestions")
    .then(
      (found) => {
        suggestions.value = found;
        readAt = Date.now();
        suggestionsProblem.value = "";
      },
      (error: Error) => {
        suggestionsProblem.value = error.message;
      },
    )
    .finally(() => {
      reading = undefined;
    });
  return reading;
}

/** The bytes of memory that models may take on all devices of the server, or Infinity if they are not known. */
export function room(available: Record<string, number> = {}): number {
  const free = Object.values(available).reduce((sum, each) => sum + each, 0);
  return free || Number.POSITIVE_INFINITY;
}

/** A share of the memory that leaves some for longer contexts and other programs. */
const EASY = 0.7;

/** A few models that chat and fit easily: the smallest, the largest, and some between them. */
export function picked({ models, available }: Suggestions, most: number): SuggestedModel[] {
  const largest = EASY * room(available);
  const fitting = models.filter((model) => model.capabilities.includes("completion") && model.memory <= largest);
  if (fitting.length <= most) return fitting;
  const places = Array.from({ length: most }, (_, index) => Math.round((index * (fitting.length - 1)) / (most - 1)));
  return places.map((place) => fitting[place]!);
}

/** The month of the list in words. */
export function monthOf(date: string): string {
  const [year, month] = date.split("-").map(Number);
  return new Date(year!, month! - 1).toLocaleDateString("en", { month: "long", year: "numeric" });
}
