import { useRef, useState } from "preact/hooks";

import { bytes } from "../models/list";
import { count } from "../models/memory";
import type { LiveModel } from "../server/types";
import { Cells, colorOf } from "./Cells";
import { Chart } from "./Chart";
import { type CachePicture, figures, liveProblem, picture, pictureProblem, samples, useLive, usePicture } from "./watch";

const SHOWN = 180;

export function LivePage() {
  const [model, setModel] = useState("");
  useLive();
  const models = figures.value?.models;
  const shown = models?.find((each) => each.name === model) ?? models?.[0];
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="What the server does now">
      <div class="page live">
        {liveProblem.value && <p class="problem" role="alert">{liveProblem.value}</p>}
        <Charts />
        {models?.length === 0 && <p class="note">No model is in memory. One is loaded by the first question to it.</p>}
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
              {`${bytes(shown.memory.total)} of memory, context ${count(shown.context_length)}, ${shown.running} of ${shown.parallel} places taken`}
            </span>
          </div>
        )}
        {shown && shown.engine !== "native" && <p class="note">{shown.engine} does not tell what its cache holds.</p>}
        {shown?.engine === "native" && <CacheOf key={shown.name} model={shown} />}
        {!!shown?.prefix_cache.length && (
          <section class="card" aria-label="Prefix cache">
            <h2>Prefix cache behind the cells</h2>
            {shown.prefix_cache.map((use) => (
              <div class="tier" key={use.tier}>
                <span>{use.tier}</span>
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

/** The picture of a model's cells and its sequences; one sequence may be chosen. */
function CacheOf({ model }: { model: LiveModel }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const place = useRef<HTMLDivElement>(null);
  usePicture(model.name, place);
  const seen = picture.value?.model === model.name ? picture.value : null;
  return (
    <div class="cache" ref={place}>
      {pictureProblem.value && <p class="problem" role="alert">{pictureProblem.value}</p>}
      {seen?.kinds.map((kind) => <Cells key={kind.kind} kind={kind} chosen={chosen} onChoose={setChosen} />)}
      {seen && <Sequences seen={seen} chosen={chosen} onChoose={setChosen} />}
    </div>
  );
}

function Charts() {
  const seen = samples.value;
  const charts: [string, (number | null)[], (value: number) => string][] = [
    ["Prompt tokens a second", seen.map((each) => each.prompts), (value) => count(Math.round(value))],
    ["Answer tokens a second", seen.map((each) => each.answers), (value) => count(Math.round(value))],
    ["Time to the first token", seen.map((each) => each.first), (value) => `${value.toFixed(value < 0.1 ? 3 : 2)} s`],
    ["Answers that are computed", seen.map((each) => each.running), count],
    ["Requests that wait", seen.map((each) => each.waiting), count],
    ["Memory of models", seen.map((each) => each.memory), bytes],
  ];
  return (
    <section class="charts" aria-label="The last three minutes">
      {charts.map(([title, values, show]) => (
        <Chart key={title} title={title} values={values} most={SHOWN} show={show} />
      ))}
    </section>
  );
}

/** The sequences as a table: what the picture shows, for those who do not see it, and for the keyboard. */
function Sequences(props: { seen: CachePicture; chosen: number | null; onChoose: (sequence: number | null) => void }) {
  const { seen, chosen, onChoose } = props;
  const tokenKinds = seen.kinds.filter((kind) => !kind.is_state);
  const held = (sequence: number) =>
    tokenKinds.map((kind) => kind.runs.filter(([owner]) => owner === sequence).reduce((all, run) => all + run[3], 0));
  return (
    <section class="card sequences" aria-label="Sequences">
      <table>
        <thead>
          <tr>
            <th scope="col">Sequence</th>
            <th scope="col">Tokens</th>
            {tokenKinds.map((kind) => (
              <th scope="col" key={kind.kind}>
                Kept of {kind.kind}
              </th>
            ))}
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {seen.slots.map((slot, index) => (
            <tr key={index}>
              <td>
                <button
                  type="button"
                  class="quiet"
                  aria-pressed={chosen === index}
                  aria-label={`Show the cells of sequence ${index}`}
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
                {slot.is_running ? "computed now" : slot.tokens ? "kept for what follows" : "empty"}
                {slot.shifted_at !== null && `, moved from ${count(slot.shifted_at)} on`}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
