// What the server does at this moment: one stream with a line each second, while the page is in sight.
import { signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";

import { json, lines, request } from "../server/requests";
import type { LiveFigures, LiveModel } from "../server/types";

const SECOND = 1000;
/** Milliseconds without a line after which a stream counts as lost. */
const PATIENCE = 10_000;
const KEPT = 180;

/** Neighbouring tokens in cells that are `step` apart: sequence, first cell, first position, count, step. */
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

/** One second: tokens a second, mean seconds to the first token of answers that ended, requests, bytes. */
export interface Sample {
  prompts: number;
  answers: number;
  first: number | null;
  running: number;
  waiting: number;
  memory: number;
}

export const figures = signal<LiveFigures | null>(null);
export const samples = signal<Sample[]>([]);
export const liveProblem = signal("");
export const picture = signal<CachePicture | null>(null);
export const pictureProblem = signal("");

/** Reads the stream while the page is there and not hidden; a stream that ends is opened again. */
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

/** Reads the picture of a model's cells with each line of the stream, while `place` is in sight. */
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
    memory: told.server.models_bytes,
  };
  samples.value = [...samples.value.slice(-(KEPT - 1)), sample];
  figures.value = told;
  liveProblem.value = "";
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
