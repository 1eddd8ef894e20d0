// Pulls that continue after a lost connection or a reload; the server keeps the downloaded parts.
import { signal } from "@preact/signals";

import { lines, request, ServerError } from "../server/requests";
import type { PullLine } from "../server/types";
import { readModels } from "./list";

export interface Pull {
  name: string;
  status: string;
  total: number;
  completed: number;
  error?: string;
}

const NAME = "chaski.pulls";
const LONGEST_WAIT = 30_000;

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
  remember();
}

export function resumePulls(): void {
  const names: unknown = JSON.parse(localStorage.getItem(NAME) ?? "[]");
  if (Array.isArray(names)) names.filter((name) => typeof name === "string").forEach(startPull);
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
  for await (const line of lines<PullLine>(await request("POST", "/api/pull", { model: name }, signal))) {
    if (line.status === "success") return true;
    if (line.digest) blobs.set(line.digest, line);
    const sum = (field: "total" | "completed") => [...blobs.values()].reduce((all, blob) => all + (blob[field] ?? 0), 0);
    note({ name, status: line.digest ? "pulling" : line.status, total: sum("total"), completed: sum("completed") });
  }
  return false;
}

function note(pull: Pull): void {
  pulls.value = { ...pulls.value, [pull.name]: pull };
  remember();
}

function remember(): void {
  const going = Object.values(pulls.value).filter((pull) => !pull.error);
  localStorage.setItem(NAME, JSON.stringify(going.map((pull) => pull.name)));
}
