import { useEffect, useState } from "preact/hooks";
import { wantsKey } from "../server/key";
import type { ListedModel, ShownModel } from "../server/types";
import { Question } from "../shell/Dialog";
import { Icon } from "../shell/Icon";
import { Adapters } from "./Adapters";
import { bytes, mayChange, models, modelsProblem, readModels, readRunning, removeModel, running, show } from "./list";
import { CopyDialog, CreateDialog } from "./MakeDialogs";
import { MemoryNeeds } from "./MemoryNeeds";
import { type Pull, pulls, startPull, stopPull } from "./pulls";

const REFRESH = 3000;

export function ModelsPage() {
  const [name, setName] = useState("");
  useEffect(() => {
    void readModels();
    const timer = setInterval(() => document.hidden || void readRunning().catch(() => {}), REFRESH);
    return () => clearInterval(timer);
  }, []);
  const pull = (event: Event) => {
    event.preventDefault();
    if (!name.trim()) return;
    startPull(name.trim());
    setName("");
  };
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="Models of this server">
      <div class="page">
        {mayChange.value && (
          <form class="pull" onSubmit={pull}>
            <input
              aria-label="Name of a model to pull"
              placeholder="llama3.2:3b, hf.co/USER/REPOSITORY:QUANT"
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
            <button type="submit" class="primary" disabled={!name.trim()}>
              <Icon name="down" /> Pull
            </button>
          </form>
        )}
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
        <ul class="models">
          {models.value.map((model) => (
            <ModelCard key={model.name} model={model} />
          ))}
        </ul>
        <Adapters />
      </div>
    </div>
  );
}

function PullCard({ pull }: { pull: Pull }) {
  const { name, status, total, completed, error } = pull;
  return (
    <div class="card" role="group" aria-label={`Pull of ${name}`}>
      <div class="row">
        <strong>{name}</strong>
        <span class={error ? "problem" : "note"} role={error ? "alert" : undefined}>
          {error ?? (total ? `${bytes(completed)} of ${bytes(total)}, ${status}` : status)}
        </span>
        {error && (
          <button type="button" onClick={() => startPull(name)}>
            Try again
          </button>
        )}
        <button type="button" class="icon-button" aria-label={`Stop pulling ${name}`} onClick={() => stopPull(name)}>
          <Icon name="close" />
        </button>
      </div>
      {!error && <progress aria-label={`Progress of ${name}`} max={total || undefined} value={total ? completed : undefined} />}
    </div>
  );
}

function ModelCard({ model }: { model: ListedModel }) {
  const [shown, setShown] = useState<ShownModel | null>(null);
  const [problem, setProblem] = useState("");
  const [asks, setAsks] = useState<"make" | "copy" | "delete" | null>(null);
  useEffect(() => {
    show(model.name).then(setShown, (error: Error) => setProblem(error.message));
  }, [model.name]);
  const loaded = running.value.find((each) => each.name === model.name);
  const { family, parameter_size, quantization_level } = model.details;
  const facts = [family, parameter_size, quantization_level, bytes(model.size)].filter(Boolean);
  return (
    <li class="card">
      <div class="row">
        <strong>{model.name}</strong>
        {loaded && <span class="badge live">in memory</span>}
        {shown?.capabilities.map((each) => (
          <span class="badge" key={each}>
            {each}
          </span>
        ))}
        {mayChange.value && (
          <span class="card-tools">
            <button
              type="button"
              class="icon-button"
              aria-label={`Make a model from ${model.name}`}
              onClick={() => setAsks("make")}
            >
              <Icon name="plus" />
            </button>
            <button type="button" class="icon-button" aria-label={`Copy ${model.name}`} onClick={() => setAsks("copy")}>
              <Icon name="copy" />
            </button>
            <button type="button" class="icon-button" aria-label={`Delete ${model.name}`} onClick={() => setAsks("delete")}>
              <Icon name="trash" />
            </button>
          </span>
        )}
      </div>
      <p class="note">{facts.join(" · ")}</p>
      {loaded && (
        <p class="note">
          {`${bytes(loaded.size)} of memory, context ${loaded.context_length}, ${loaded.users} of ${loaded.parallel} places taken`}
          {loaded.waiting > 0 && `, ${loaded.waiting} waiting`}
        </p>
      )}
      <MemoryNeeds name={model.name} />
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {shown && <Details shown={shown} />}
      {asks === "make" && <CreateDialog from={model.name} onClose={() => setAsks(null)} />}
      {asks === "copy" && <CopyDialog source={model.name} onClose={() => setAsks(null)} />}
      {asks === "delete" && (
        <Question
          title={`Delete ${model.name}?`}
          text={`${bytes(model.size)} of this server's disk are freed; to have it again, it must be pulled again.`}
          yes="Delete"
          onYes={() => void removeModel(model.name).catch((error: Error) => setProblem(error.message))}
          onClose={() => setAsks(null)}
        />
      )}
    </li>
  );
}

function Details({ shown }: { shown: ShownModel }) {
  const info = Object.entries(shown.model_info).filter(([, value]) => !Array.isArray(value) && value !== null);
  const texts: [string, string | undefined][] = [
    ["Parameters", shown.parameters],
    ["System prompt", shown.system],
    ["Template", shown.template],
    ["License", shown.license],
  ];
  return (
    <details>
      <summary>Details</summary>
      <dl class="facts">
        <div>
          <dt>engine</dt>
          <dd>{shown.engine_reason ? `${shown.engine}: ${shown.engine_reason}` : shown.engine}</dd>
        </div>
        {(shown.adapters ?? []).map((adapter) => (
          <div key={adapter.name}>
            <dt>adapter</dt>
            <dd>{`${adapter.name}, rank ${adapter.rank}, alpha ${adapter.alpha}`}</dd>
          </div>
        ))}
        {info.map(([key, value]) => (
          <div key={key}>
            <dt>{key}</dt>
            <dd>{String(value)}</dd>
          </div>
        ))}
      </dl>
      {texts.map(
        ([title, text]) =>
          text && (
            <details class="file" key={title}>
              <summary>{title}</summary>
              <pre tabIndex={0}>{text}</pre>
            </details>
          ),
      )}
    </details>
  );
}
