// What the server does at this moment: asked once a second, while the page is in sight.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { running } from "../models/list";
import { json, request } from "../server/requests";
import type { RunningModel } from "../server/types";

const SECOND = 1000;
const KEPT = 180;

/** Neighbouring cells with neighbouring tokens: sequence, first cell, first position, count. */
export type Run = [sequence: number, cell: number, position: number, count: number];

export interface CacheKind {
  kind: string;
  is_state: boolean;
  cells: number;
  runs: Run[];
}

export interface CacheSlot {
  tokens: number;
  is_running: boolean;
  shifted_at: number | null;
}

export interface CachePicture {
  model: string;
  slots: CacheSlot[];
  kinds: CacheKind[];
}

/** One second: tokens that were stored, seconds to the first token of answers that ended, requests, bytes. */
export interface Sample {
  time: number;
  tokens: number;
  first: number | null;
  users: number;
  waiting: number;
  memory: number;
}

export const picture = signal<CachePicture | null>(null);
export const samples = signal<Sample[]>([]);
export const liveProblem = signal("");

let before: { time: number; picture: CachePicture | null; firsts: [number, number] } | null = null;

/** Asks while the page is there and not hidden; `model` is the one whose cache is shown, "" for the last one. */
export function useLive(model: string): void {
  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout>;
    const tick = async () => {
      if (!document.hidden) await look(model);
      if (!isOver) timer = setTimeout(() => void tick(), SECOND);
    };
    void tick();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [model]);
}

async function look(model: string): Promise<void> {
  try {
    const [{ models }, metrics] = await Promise.all([
      json<{ models: RunningModel[] }>("GET", "/api/ps"),
      request("GET", "/metrics").then((response) => response.text()),
    ]);
    running.value = models;
    const shown = models.find((each) => each.name === model) ?? models[0];
    const query = `?model=${encodeURIComponent(shown?.name ?? "")}`;
    const seen = shown?.engine === "native" ? await json<CachePicture>("GET", `/api/live/cache${query}`) : null;
    picture.value = seen;
    note(models, seen, [sum(metrics, "chaski_prefill_seconds_sum"), sum(metrics, "chaski_prefill_seconds_count")]);
    liveProblem.value = "";
  } catch (error) {
    liveProblem.value = (error as Error).message;
  }
}

function note(models: RunningModel[], seen: CachePicture | null, firsts: [number, number]): void {
  const time = performance.now();
  const seconds = before ? (time - before.time) / 1000 : 1;
  const answers = before ? firsts[1] - before.firsts[1] : 0;
  const total = (of: (model: RunningModel) => number) => models.reduce((all, each) => all + of(each), 0);
  const sample = {
    time,
    tokens: grown(before?.picture ?? null, seen) / seconds,
    first: before && answers > 0 ? (firsts[0] - before.firsts[0]) / answers : null,
    users: total((each) => each.users - each.waiting),
    waiting: total((each) => each.waiting),
    memory: total((each) => each.size),
  };
  samples.value = [...samples.value.slice(-(KEPT - 1)), sample];
  before = { time, picture: seen, firsts };
}

/** Tokens that slots have more than a second ago. */
function grown(old: CachePicture | null, now: CachePicture | null): number {
  if (!old || !now || old.model !== now.model) return 0;
  return now.slots.reduce((all, slot, index) => all + Math.max(0, slot.tokens - (old.slots[index]?.tokens ?? 0)), 0);
}

function sum(metrics: string, name: string): number {
  const values = metrics.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, "gm"));
  return [...values].reduce((all, [, value]) => all + Number(value), 0);
}
