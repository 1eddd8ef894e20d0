// Pulls that continue after a lost connection or a reload; the server keeps the downloaded parts.
import { signal } from "@preact/signals";

import { json, lines, request, ServerError } from "../server/requests";
import type { PullLine } from "../server/types";
import { bytes, readModels } from "./list";

export interface Pull {
  name: string;
  status: string;
  total: number;
  completed: number;
  /** Bytes a second since the connection began. */
  rate?: number;
  error?: string;
}

/** What to pull: the text of the field on the page of models. */
export const wantedPull = signal("");

/** The model that a pasted name, command or link means. Throws ServerError for a text that means none. */
export function meantModel(text: string, signal?: AbortSignal): Promise<{ model: string; is_stored: boolean }> {
  return json("POST", "/api/name", { text }, signal);
}

/** The progress of a pull in words. */
export function pullFacts({ status, total, completed, rate }: Pull): string {
  if (!total) return status;
  const known = `${bytes(completed)} of ${bytes(total)}, ${status}`;
  if (!rate || status !== PULLING || completed >= total) return known;
  return `${known}, ${bytes(rate)} a second, ${duration((total - completed) / rate)} left`;
}

function duration(seconds: number): string {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

const NAME = "chaski.pulls";
const LONGEST_WAIT = 30_000;
const PULLING = "pulling";
const SOON = 3000;

export const pulls = signal<Record<string, Pull>>({});
const controls = new Map<string, AbortController>();

export function startPull(name: string): void {
  if (controls.has(name)) return;
  const control = new AbortController();
  controls.set(name, control);
  note({ name, status: "asking the registry", total: 0, completed: 0 });
  void run(name, control.signal).finally(() => controls.delete(name));
}

export function stopPull(name: string): void {
  controls.get(name)?.abort();
  const { [name]: _, ...others } = pulls.value;
  pulls.value = others;
  remember(name, false);
}

export function resumePulls(): void {
  remembered().forEach(startPull);
}

async function run(name: string, signal: AbortSignal): Promise<void> {
  for (let wait = 1000; !signal.aborted; wait = Math.min(2 * wait, LONGEST_WAIT)) {
    try {
      if (await attempt(name, signal)) {
        stopPull(name);
        await readModels();
        return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ServerError) || error.status !== 0) {
        note({ ...pulls.value[name]!, error: (error as Error).message });
        return;
      }
    }
    note({ ...pulls.value[name]!, status: "the connection was lost; trying again" });
    await new Promise((resume) => setTimeout(resume, wait));
  }
}

/** Returns whether the model is complete. */
async function attempt(name: string, signal: AbortSignal): Promise<boolean> {
  const blobs = new Map<string, PullLine>();
  let began: { time: number; completed: number } | undefined;
  for await (const line of lines<PullLine>(await request("POST", "/api/pull", { model: name }, signal))) {
    if (line.status === "success") return true;
    if (line.digest) blobs.set(line.digest, line);
    const sum = (field: "total" | "completed") => [...blobs.values()].reduce((all, blob) => all + (blob[field] ?? 0), 0);
    const completed = sum("completed");
    if (completed) began ??= { time: Date.now(), completed };
    const passed = began ? Date.now() - began.time : 0;
    const rate = began && passed > SOON ? ((completed - began.completed) / passed) * 1000 : undefined;
    note({ name, status: line.digest ? PULLING : line.status, total: sum("total"), completed, rate });
  }
  return false;
}

function note(pull: Pull): void {
  pulls.value = { ...pulls.value, [pull.name]: pull };
  remember(pull.name, !pull.error);
}

/** Other tabs remember their pulls in the same list. */
function remember(name: string, isGoing: boolean): void {
  const others = remembered().filter((other) => other !== name);
  localStorage.setItem(NAME, JSON.stringify(isGoing ? [...others, name] : others));
}

function remembered(): string[] {
  const names: unknown = JSON.parse(localStorage.getItem(NAME) ?? "[]");
  return Array.isArray(names) ? names.filter((name) => typeof name === "string") : [];
}
