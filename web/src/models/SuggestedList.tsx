import { useEffect } from "preact/hooks";

import type { SuggestedModel } from "../server/types";
import { Icon } from "../shell/Icon";
import { Badges } from "./Badges";
import { isSameName } from "./choice";
import { bytes, mayChange, models } from "./list";
import { pullFacts, pulls, startPull } from "./pulls";
import { picked, readSuggestions, suggestions, suggestionsProblem } from "./suggestions";

/** Models to pull: all of the list, or `most` of those that chat and fit. */
export function SuggestedList({ most }: { most?: number }) {
  useEffect(() => void readSuggestions(), []);
  const found = suggestions.value;
  if (!found)
    return (
      <p class="note suggested-wait" role="status">
        {suggestionsProblem.value || "Looking which models fit this machine…"}
      </p>
    );
  return (
    <ul class="suggested">
      {(most ? picked(found, most) : found.models).map((model) => (
        <Suggestion key={model.name} model={model} />
      ))}
    </ul>
  );
}

function Suggestion({ model }: { model: SuggestedModel }) {
  const { name, title, parameters, size, memory, capabilities, license, good_for, fits } = model;
  const isHere = models.value.some((each) => isSameName(each.name, name));
  const pull = Object.values(pulls.value).find((each) => isSameName(each.name, name));
  return (
    <li class="suggestion">
      <div class="suggestion-text">
        <div class="row">
          <strong>{title}</strong>
          <Badges capabilities={capabilities} known={["completion"]} />
        </div>
        <p>{good_for}</p>
        <p class="note">
          {`${name} · ${parameters} · ${bytes(size)} to download · about ${bytes(memory)} of memory · ${license}`}
        </p>
        {fits === false && <p class="problem">Needs more memory than this machine has free.</p>}
        {fits && (
          <p class="fits">
            <Icon name="check" /> Fits this machine
          </p>
        )}
        {pull && (
          <p class={pull.error ? "problem" : "note"} role="status">
            {pull.error ?? pullFacts(pull)}
          </p>
        )}
        {pull && !pull.error && (
          <progress
            aria-label={`Download of ${title}`}
            max={pull.total || undefined}
            value={pull.total ? pull.completed : undefined}
          />
        )}
      </div>
      {isHere && !pull && (
        <span class="here">
          <Icon name="check" /> Here
        </span>
      )}
      {!isHere && (!pull || pull.error) && mayChange.value && (
        <button type="button" aria-label={`Pull ${title}`} onClick={() => startPull(name)}>
          <Icon name="down" /> Pull
        </button>
      )}
    </li>
  );
}
