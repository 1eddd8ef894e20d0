// Asks the server for the memory that models would take, before they are loaded.
import { useEffect, useState } from "preact/hooks";

import { json } from "../server/requests";
import type { MemoryEstimate } from "../server/types";
import { bytes } from "./list";

const PAUSE = 300;

export interface Asked {
  estimate: MemoryEstimate | null;
  problem: string;
}

/** The memory of a model at a size, requested again `pause` after a change; an empty `name` requests none. */
export function useEstimate(name: string, context?: number, parallel?: number, pause = PAUSE): Asked {
  const [asked, setAsked] = useState<Asked>({ estimate: null, problem: "" });
  useEffect(() => {
    const control = new AbortController();
    setAsked((before) => ({ ...before, problem: "" }));
    const timer = setTimeout(() => {
      if (!name) return setAsked({ estimate: null, problem: "" });
      const question = { model: name, num_ctx: context, parallel };
      json<MemoryEstimate>("POST", "/api/memory", question, control.signal).then(
        (estimate) => setAsked({ estimate, problem: "" }),
        (error: Error) => control.signal.aborted || setAsked({ estimate: null, problem: error.message }),
      );
    }, pause);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [name, context, parallel]);
  return asked;
}

/** A sentence that states whether a model fits, and how much memory is missing. */
export function verdict(estimate: MemoryEstimate): string {
  const { num_ctx, parallel, fits, unloads, devices, freeable } = estimate;
  const size = `with a context of ${count(num_ctx)}, ${parallel} at a time`;
  if (fits && unloads) return `Fits ${size}, after other models are unloaded`;
  const needs = Object.entries(devices).map(([device, { needed, available }]) => {
    const room = available + (device === "cpu" ? freeable : 0);
    const where = device === "cpu" ? "" : ` on ${device}`;
    if (fits) return `${bytes(needed)} of ${bytes(available)} available${where}`;
    const missing = needed > room ? `, ${bytes(needed - room)} more than available` : "";
    return `${bytes(needed)}${where}${missing}`;
  });
  return fits ? `Fits: ${needs.join(", ")}, ${size}` : `Does not fit: it needs ${needs.join("; ")}, ${size}`;
}

export function count(number: number): string {
  return number.toLocaleString("en");
}
