import { useEffect, useState } from "preact/hooks";

import { wantsKey } from "../server/key";
import { Icon } from "../shell/Icon";
import { Adapters } from "./Adapters";
import { chats, matching } from "./choice";
import { mayChange, models, modelsProblem, readModels, readRunning } from "./list";
import { ModelCard } from "./ModelCard";
import { PullForm } from "./PullForm";
import { type Pull, pullFacts, pulls, startPull, stopPull } from "./pulls";
import { SuggestedList } from "./SuggestedList";
import { monthOf, suggestions } from "./suggestions";

const REFRESH = 3000;
/** With fewer models, a search is of no use. */
const MANY = 6;

export function ModelsPage() {
  const [search, setSearch] = useState("");
  useEffect(() => {
    void readModels();
    const timer = setInterval(() => document.hidden || void readRunning().catch(() => {}), REFRESH);
    return () => clearInterval(timer);
  }, []);
  const found = matching(models.value, search);
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="Models of this server">
      <div class="page">
        {mayChange.value && <PullForm />}
        {mayChange.value === false && (
          <div class="card row" role="note">
            <p>
              Your key may use models but not change them. To pull, make, copy or delete models, and to load or scale adapters,
              you need an admin key.
            </p>
            <button type="button" onClick={() => (wantsKey.value = "other")}>
              Use another key
            </button>
          </div>
        )}
        {Object.values(pulls.value).map((each) => (
          <PullCard key={each.name} pull={each} />
        ))}
        {modelsProblem.value && (
          <p class="problem" role="alert">
            {modelsProblem.value}
          </p>
        )}
        {mayChange.value && models.value.length > 0 && <ModelsToGet />}
        {models.value.length >= MANY && (
          <input
            type="search"
            aria-label="Search the models of this server"
            placeholder={`Search ${models.value.length} models by name, size or ability`}
            value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        )}
        <ul class="models" aria-label="Stored models">
          {found.map((model) => (
            <ModelCard key={model.name} model={model} />
          ))}
        </ul>
        {search && !found.length && <p class="note">No model of this server matches “{search}”.</p>}
        <Adapters />
      </div>
    </div>
  );
}

/** The suggested models; open while no other model that chats is here. */
function ModelsToGet() {
  const hasOwn = models.value.some((model) => chats(model) && !model.bundled);
  const [isOpen, setOpen] = useState(!hasOwn);
  return (
    <details class="card to-get" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <h2>Models to get</h2>
      </summary>
      {isOpen && (
        <>
          <SuggestedList />
          {suggestions.value && (
            <p class="note">
              A list of {monthOf(suggestions.value.date)}. The memory is an estimate for a usual context; the field above takes
              any other model.
            </p>
          )}
        </>
      )}
    </details>
  );
}

function PullCard({ pull }: { pull: Pull }) {
  const { name, total, completed, error } = pull;
  return (
    <div class="card" role="group" aria-label={`Pull of ${name}`}>
      <div class="card-head">
        <strong>{name}</strong>
        <span class="card-tools">
          {error && (
            <button type="button" onClick={() => startPull(name)}>
              Try again
            </button>
          )}
          <button
            type="button"
            class="icon-button"
            title="Stop; what was downloaded is kept for the next pull"
            aria-label={`Stop pulling ${name}`}
            onClick={() => stopPull(name)}
          >
            <Icon name="close" />
          </button>
        </span>
      </div>
      <p class={error ? "problem" : "note"} role={error ? "alert" : undefined}>
        {error ?? pullFacts(pull)}
      </p>
      {!error && <progress aria-label={`Progress of ${name}`} max={total || undefined} value={total ? completed : undefined} />}
    </div>
  );
}
