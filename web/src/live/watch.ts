// The server's current activity: one stream with a line per second, while the page is visible.
import { signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";

import { json, lines, request } from "../server/requests";
import type { LiveFigures, LiveModel } from "../server/types";

const SECOND = 1000;
/** Milliseconds without a line after which a stream counts as lost. */
const PATIENCE = 10_000;
const KEPT = 180;

/** A run of tokens in cells that are `step` apart: sequence, first cell, first position, count, step. */
export type Run = [sequence: number, cell: number, position: number, count: number, step: number];

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

/** Tokens of all models: cached prompt tokens by tier, dropped ones, proposed ones, and accepted ones. */
export type Totals = Record<"cells" | "memory" | "disk" | "dropped" | "guessed" | "right", number>;

/**
 * One second: tokens per second, mean seconds to the first token of ended answers, requests, bytes; and the
 * growth of `Totals` per second, null if the second before is unknown.
 */
export interface Sample {
  prompts: number;
  answers: number;
  first: number | null;
  running: number;
  waiting: number;
  bytes: number;
  rates: Totals | null;
}

export const figures = signal<LiveFigures | null>(null);
/** Totals since each model was loaded. */
export const totals = signal<Totals | null>(null);
export const samples = signal<Sample[]>([]);
export const liveProblem = signal("");
export const picture = signal<CachePicture | null>(null);
export const pictureProblem = signal("");

/** Reads the stream while the page is mounted and visible, and opens it again when it ends. */
export function useLive(): void {
  useEffect(() => {
    let control = new AbortController();
    const turn = () => {
      control.abort();
      control = new AbortController();
      if (!document.hidden) void watch(control.signal);
    };
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => {
      document.removeEventListener("visibilitychange", turn);
      control.abort();
    };
  }, []);
}

/** Reads the picture of a model's cells with each line of the stream, while `place` is visible. */
export function usePicture(model: string, place: RefObject<Element | null>): void {
  const [isSeen, setSeen] = useState(false);
  const now = figures.value;
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => setSeen(entries.at(-1)!.isIntersecting));
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (isSeen) void look(model);
  }, [isSeen, model, now]);
}

async function watch(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const attempt = new AbortController();
    const end = () => attempt.abort();
    signal.addEventListener("abort", end);
    let timer = setTimeout(end, PATIENCE);
    try {
      const response = await request("GET", "/api/live?stream=1", undefined, attempt.signal);
      for await (const told of lines<LiveFigures>(response)) {
        clearTimeout(timer);
        timer = setTimeout(end, PATIENCE);
        note(told);
      }
    } catch (error) {
      if (signal.aborted) return;
      liveProblem.value = attempt.signal.aborted ? "The server does not answer." : (error as Error).message;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
    }
    await new Promise((resume) => setTimeout(resume, SECOND));
  }
}

function note(told: LiveFigures): void {
  const before = figures.value?.server;
  const { first_tokens, first_token_seconds } = told.server;
  const ended = before ? first_tokens - before.first_tokens : 0;
  const total = (of: (model: LiveModel) => number) => told.models.reduce((all, each) => all + of(each), 0);
  const sample = {
    prompts: total((each) => each.prompt_tokens_per_second ?? 0),
    answers: total((each) => each.generated_tokens_per_second ?? 0),
    first: ended > 0 ? (first_token_seconds - before!.first_token_seconds) / ended : null,
    running: total((each) => each.running),
    waiting: told.server.waiting_for_load + total((each) => each.waiting),
    bytes: told.server.models_bytes,
    rates: rates(told.models, told.server.uptime_seconds - (before?.uptime_seconds ?? Infinity)),
  };
  samples.value = [...samples.value.slice(-(KEPT - 1)), sample];
  figures.value = told;
  liveProblem.value = "";
}

const NONE: Totals = { cells: 0, memory: 0, disk: 0, dropped: 0, guessed: 0, right: 0 };
const NAMES = Object.keys(NONE) as (keyof Totals)[];
/** The last totals of each model; a model whose process is busy reports none for a while. */
const known = new Map<string, Totals>();

/** Notes the totals of models, and returns their growth in the given seconds; null if it is unknown. */
function rates(models: LiveModel[], seconds: number): Totals | null {
  const all = { ...NONE };
  const grown = { ...NONE };
  for (const model of models) {
    const before = known.get(model.name);
    const now = totalsOf(model) ?? before;
    if (!now) continue;
    known.set(model.name, now);
    for (const name of NAMES) {
      all[name] += now[name];
      grown[name] += before ? Math.max(0, now[name] - before[name]) / seconds : 0;
    }
  }
  totals.value = all;
  return seconds > 0 && Number.isFinite(seconds) ? grown : null;
}

function totalsOf(model: LiveModel): Totals | null {
  const { cached_tokens_by_tier: cached, dropped_tokens: dropped = 0 } = model;
  if (!cached) return null;
  return { ...cached, dropped, guessed: model.proposed_tokens ?? 0, right: model.accepted_tokens ?? 0 };
}

let isAsked = false;

async function look(model: string): Promise<void> {
  if (isAsked) return;
  isAsked = true;
  try {
    picture.value = await json<CachePicture>("GET", `/api/live/cache?model=${encodeURIComponent(model)}`);
    pictureProblem.value = "";
  } catch (error) {
    pictureProblem.value = (error as Error).message;
  } finally {
    isAsked = false;
  }
}
