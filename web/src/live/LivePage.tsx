import { useRef, useState } from "preact/hooks";

import { bytes } from "../models/list";
import { count } from "../models/memory";
import type { LiveModel } from "../server/types";
import { Cells } from "./Cells";
import { Chart, type Line } from "./Chart";
import { expertsIn } from "./experts";
import { Legend } from "./Legend";
import { colorOf } from "./picture";
import { Replicas } from "./Replicas";
import {
  type CachePicture,
  figures,
  liveProblem,
  picture,
  pictureProblem,
  type Sample,
  samples,
  type Totals,
  totals,
  useLive,
  usePicture,
} from "./watch";
import { keptOf, type Pointed, type Token, tokenAt } from "./ways";

const SHOWN = 180;
const TIERS: Record<string, string> = { memory: "In memory", disk: "On disk" };

export function LivePage() {
  const [model, setModel] = useState("");
  useLive();
  const models = figures.value?.models;
  const shown = models?.find((each) => each.name === model) ?? models?.[0];
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="Live view of the server">
      <div class="page live">
        {liveProblem.value && (
          <p class="problem" role="alert">
            {liveProblem.value}
          </p>
        )}
        <p class="note intro">What this server does, second by second, over the last three minutes.</p>
        <Charts />
        {models?.length === 0 && <p class="note">No model is in memory. The first question to a model loads it.</p>}
        {shown && (
          <div class="row">
            <label class="field">
              The cache of
              <select value={shown.name} onChange={(event) => setModel(event.currentTarget.value)}>
                {models!.map(({ name }) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
            <span class="note">
              {`${bytes(shown.memory.total)} of memory, context ${count(shown.context_length)}, ${shown.running} of ${shown.parallel} places for requests taken`}
            </span>
          </div>
        )}
        {shown && shown.engine !== "native" && <p class="note">{shown.engine} does not show what its cache contains.</p>}
        {shown?.engine === "native" && <CacheOf key={shown.name} model={shown} />}
        {shown?.replicas && <Replicas model={shown} />}
        {!!shown?.experts?.length && (
          <section class="card" aria-label="Experts">
            <h2>Experts</h2>
            <p class="note">Memory, or a GPU, holds the experts that tokens choose most. The others are read from the disk.</p>
            {expertsIn(shown.experts).map(({ name, hits, note }) => (
              <div class="tier" key={name}>
                <span>{name}</span>
                <meter min={0} max={1} value={hits} aria-label={`${name}, found`} />
                <span class="note">{note}</span>
              </div>
            ))}
          </section>
        )}
        {!!shown?.prefix_cache.length && (
          <section class="card" aria-label="Prefix cache">
            <h2>Prefix cache</h2>
            <p class="note">Beginnings of earlier prompts. A new prompt that begins alike is answered sooner.</p>
            {shown.prefix_cache.map((use) => (
              <div class="tier" key={use.tier}>
                <span>{TIERS[use.tier] ?? use.tier}</span>
                <meter min={0} max={use.max_bytes || 1} value={use.bytes} aria-label={`${use.tier}, taken`} />
                <span class="note">
                  {`${count(use.tokens)} tokens in ${count(use.blocks)} blocks, ${bytes(use.bytes)} of ${bytes(use.max_bytes)}`}
                </span>
              </div>
            ))}
          </section>
        )}
      </div>
    </div>
  );
}

/** The picture of a model's cells and sequences. The user can choose a sequence and point at a token. */
function CacheOf({ model }: { model: LiveModel }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const place = useRef<HTMLDivElement>(null);
  usePicture(model.name, place);
  const seen = picture.value?.model === model.name ? picture.value : null;
  const token = seen && tokenAt(seen, pointed);
  const shared = { chosen, token, onPoint: setPointed, onChoose: setChosen };
  return (
    <div class="cache" ref={place}>
      {pictureProblem.value && (
        <p class="problem" role="alert">
          {pictureProblem.value}
        </p>
      )}
      {seen && <Legend kinds={seen.kinds} />}
      {seen?.kinds.map((kind) => (
        <Cells key={kind.kind} kind={kind} slots={seen.slots} pointed={pointed} {...shared} />
      ))}
      {seen && <Sequences seen={seen} {...shared} />}
    </div>
  );
}

function Charts() {
  const seen = samples.value;
  const one = (of: (sample: Sample) => number | null): Line[] => [{ name: "", values: seen.map(of) }];
  const several = (names: Record<string, keyof Totals>): Line[] =>
    Object.entries(names).map(([name, of]) => ({ name, values: seen.map(({ rates }) => rates?.[of] ?? null) }));
  const whole = (value: number) => count(Math.round(value));
  const all = totals.value;
  const sum = (...names: (keyof Totals)[]) => all && `${count(names.reduce((sum, name) => sum + all[name], 0))} in total`;
  const charts: [title: string, about: string, Line[], (value: number) => string, (string | null)?][] = [
    ["Prompt tokens per second", "How fast questions are read", one((each) => each.prompts), whole],
    ["Answer tokens per second", "How fast answers are written", one((each) => each.answers), whole],
    [
      "Time to the first token",
      "From request to first word",
      one((each) => each.first),
      (value) => `${value.toFixed(value < 0.1 ? 3 : 2)} s`,
    ],
    ["Requests running", "Answered at this moment", one((each) => each.running), count],
    ["Requests waiting", "For a free place or for a model", one((each) => each.waiting), count],
    ["Memory of models", "Taken by all loaded models", one((each) => each.bytes), bytes],
    [
      "Cached prompt tokens per second",
      "Read before, so not computed again",
      several({ cells: "cells", memory: "memory", disk: "disk" }),
      whole,
      sum("cells", "memory", "disk"),
    ],
    [
      "Draft tokens per second",
      "Guessed ahead; accepted guesses save time",
      several({ proposed: "guessed", accepted: "right" }),
      whole,
      all && shareRight(all),
    ],
    ["Dropped tokens per second", "Forgotten when a context was full", several({ "": "dropped" }), whole, sum("dropped")],
  ];
  return (
    <section class="charts" aria-label="The last three minutes">
      {charts.map(([title, about, lines, show, note]) => (
        <Chart key={title} title={title} about={about} lines={lines} most={SHOWN} show={show} note={note ?? undefined} />
      ))}
    </section>
  );
}

function shareRight({ guessed, right }: Totals): string {
  return `${count(guessed)} in total${guessed ? `, ${Math.round((100 * right) / guessed)} % accepted` : ""}`;
}

/** The sequences as a table: the picture's content for screen readers and for the keyboard. */
function Sequences(props: {
  seen: CachePicture;
  chosen: number | null;
  token: Token | null;
  onPoint: (pointed: Pointed | null) => void;
  onChoose: (sequence: number | null) => void;
}) {
  const { seen, chosen, token, onPoint, onChoose } = props;
  const tokenKinds = seen.kinds.filter((kind) => !kind.is_state);
  const held = (sequence: number) => tokenKinds.map((kind) => keptOf(kind, sequence));
  return (
    <section class="card sequences" aria-label="Sequences">
      <table>
        <thead>
          <tr>
            <th scope="col">Sequence</th>
            <th scope="col">Tokens</th>
            {tokenKinds.map((kind) => (
              <th scope="col" key={kind.kind}>
                Kept ({kind.kind})
              </th>
            ))}
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {seen.slots.map((slot, index) => (
            <tr
              key={index}
              class={token?.sequence === index ? "on" : undefined}
              onMouseEnter={() => onPoint({ sequence: index, position: null })}
              onMouseLeave={() => onPoint(null)}
            >
              <td>
                <button
                  type="button"
                  class="quiet"
                  aria-pressed={chosen === index}
                  aria-label={`Show the cells of sequence ${index}`}
                  onFocus={() => onPoint({ sequence: index, position: null })}
                  onBlur={() => onPoint(null)}
                  onClick={() => onChoose(chosen === index ? null : index)}
                >
                  <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
                    <rect width="10" height="10" fill={colorOf(index)} />
                  </svg>
                  {index}
                </button>
              </td>
              <td>{count(slot.tokens)}</td>
              {held(index).map((kept, place) => (
                <td key={place}>
                  {count(kept)}
                  {slot.tokens > kept && `, ${count(slot.tokens - kept)} dropped`}
                </td>
              ))}
              <td>
                {slot.is_running ? "answering now" : slot.tokens ? "kept for the next question" : "empty"}
                {slot.shifted_at !== null && `, tokens after ${count(slot.shifted_at)} moved forward`}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
