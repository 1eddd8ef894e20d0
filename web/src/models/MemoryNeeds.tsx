import { useEffect, useRef, useState } from "preact/hooks";

import type { DeviceNeeds, MemoryEstimate } from "../server/types";
import { bytes, running } from "./list";
import { count, useEstimate, verdict } from "./memory";

const PARTS: [keyof DeviceNeeds, string][] = [
  ["weights", "weights"],
  ["shared", "of them in memory already"],
  ["in_files", "too large, read from the file"],
  ["plans", "plans"],
  ["draft", "draft model"],
  ["adapters", "adapters"],
  ["needed", "all"],
  ["available", "available"],
];

/** Milliseconds before a chat asks, so that just opening a chat costs the server nothing. */
const CALM = 1200;

/** Shows whether a model fits, at a size that the user can change. It asks the server only once it is visible. */
export function MemoryNeeds({ name }: { name: string }) {
  const place = useRef<HTMLDetailsElement>(null);
  const [isSeen, setSeen] = useState(false);
  const [context, setContext] = useState<number>();
  const [parallel, setParallel] = useState<number>();
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => entry!.isIntersecting && setSeen(true));
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  const { estimate, problem } = useEstimate(isSeen ? name : "", context, parallel);
  return (
    <details class="memory" ref={place}>
      <summary aria-live="polite">
        {problem ? (
          <span class="note">Memory: {problem}</span>
        ) : estimate ? (
          <span class={estimate.fits ? "note" : "problem"}>{verdict(estimate)}</span>
        ) : (
          <span class="note">Memory</span>
        )}
      </summary>
      <div class="sizes">
        <Size label="Context" value={context} placeholder={estimate?.num_ctx} onChange={setContext} />
        <Size label="At a time" value={parallel} placeholder={estimate?.parallel} onChange={setParallel} />
        {estimate && <Fitting estimate={estimate} onContext={setContext} onParallel={setParallel} />}
      </div>
      {estimate && <Parts estimate={estimate} />}
    </details>
  );
}

/** A warning above the message field if the model would not fit with the conversation's context. */
export function MemoryWarning(props: { model: string; context?: number; onContext: (context: number) => void }) {
  const loaded = running.value.find((each) => each.name === props.model);
  const isThere = loaded !== undefined && loaded.context_length >= (props.context ?? 0);
  const { estimate } = useEstimate(isThere ? "" : props.model, props.context, undefined, CALM);
  if (!estimate || estimate.fits) return null;
  return (
    <div class="warning" role="alert">
      <span>
        <strong>{props.model}</strong>: {verdict(estimate)}.
      </span>
      <Fitting estimate={estimate} onContext={props.onContext} />
    </div>
  );
}

/** Buttons for smaller sizes that fit, if this one does not. */
function Fitting(props: {
  estimate: MemoryEstimate;
  onContext: (context: number) => void;
  onParallel?: (parallel: number) => void;
}) {
  const { estimate, onContext, onParallel } = props;
  const { num_ctx, parallel } = estimate.fitting ?? { num_ctx: 0, parallel: 0 };
  if (estimate.fits) return null;
  return (
    <>
      {num_ctx > 0 && (
        <button type="button" onClick={() => onContext(num_ctx)}>
          Use a context of {count(num_ctx)}
        </button>
      )}
      {onParallel && parallel > 0 && (
        <button type="button" onClick={() => onParallel(parallel)}>
          {parallel} at a time
        </button>
      )}
      {!num_ctx && <span class="note">No context fits.</span>}
    </>
  );
}

function Size(props: { label: string; value?: number; placeholder?: number; onChange: (value?: number) => void }) {
  return (
    <label class="field">
      {props.label}
      <input
        type="number"
        min={1}
        step={1}
        placeholder={props.placeholder?.toString()}
        value={props.value ?? ""}
        onInput={(event) => {
          const { value, validity } = event.currentTarget;
          if (validity.valid) props.onChange(value === "" ? undefined : Number(value));
        }}
      />
    </label>
  );
}

function Parts({ estimate }: { estimate: MemoryEstimate }) {
  const devices = Object.entries(estimate.devices);
  const shown = PARTS.filter(([part]) => devices.some(([, needs]) => needs[part] > 0));
  return (
    <>
      {devices.map(([device, needs]) => (
        <Bar key={device} needs={needs} />
      ))}
      <dl class="facts">
        {estimate.caches.map(({ kind, layers, cells, bytes: held }) => (
          <div key={kind}>
            <dt>
              cache, {kind}: {count(layers)} layers of {count(cells)} cells
            </dt>
            <dd>{bytes(held)}</dd>
          </div>
        ))}
        {shown.map(([part, label]) => (
          <div key={part}>
            <dt>{label}</dt>
            <dd>{devices.map(([device, needs]) => bytes(needs[part]) + (devices.length > 1 ? ` ${device}` : "")).join(", ")}</dd>
          </div>
        ))}
        {estimate.prefix_cache > 0 && (
          <div>
            <dt>prefix cache, later, at most</dt>
            <dd>{bytes(estimate.prefix_cache)}</dd>
          </div>
        )}
      </dl>
    </>
  );
}

/** The parts of the needed memory as shares of the available memory, or of the need if that is larger. */
function Bar({ needs }: { needs: DeviceNeeds }) {
  const whole = Math.max(needs.needed, needs.available, 1);
  const parts = [
    ["weights", needs.weights - needs.shared],
    ["caches", needs.caches],
    ["plans", needs.plans + needs.draft + needs.adapters],
  ] as const;
  let at = 0;
  return (
    <svg class="memory-bar" viewBox="0 0 1000 12" preserveAspectRatio="none" aria-hidden="true">
      <rect class="room" width={(1000 * needs.available) / whole} height="12" />
      {parts.map(([name, held]) => {
        const begin = at;
        at += (1000 * held) / whole;
        return <rect key={name} class={name} x={begin} width={at - begin} height="12" />;
      })}
      <rect class="edge" x={(1000 * needs.available) / whole - 2} width="2" height="12" />
    </svg>
  );
}
