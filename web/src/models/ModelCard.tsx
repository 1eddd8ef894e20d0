import { useEffect, useState } from "preact/hooks";

import type { ListedModel, ShownModel } from "../server/types";
import { Question } from "../shell/Dialog";
import { Icon } from "../shell/Icon";
import { Badges } from "./Badges";
import { chats } from "./choice";
import { rememberModel } from "./chosen";
import { deletionText } from "./deletion";
import { bytes, mayChange, readModels, removeModel, running, show } from "./list";
import { CopyDialog, CreateDialog } from "./MakeDialogs";
import { MemoryNeeds } from "./MemoryNeeds";

/** A stored model, with what it can do, what it takes, and what may be done with it. */
export function ModelCard({ model }: { model: ListedModel }) {
  const [shown, setShown] = useState<ShownModel | null>(null);
  const [problem, setProblem] = useState("");
  const [asks, setAsks] = useState<"make" | "copy" | "delete" | null>(null);
  const describe = () => {
    show(model.name).then(setShown, (error: Error) => setProblem(error.message));
  };
  useEffect(() => {
    if (!model.capabilities.length) describe(); // its files cannot be read, and the server says why
  }, [model.digest]);
  const askDeletion = async () => {
    await readModels(); // what a deletion frees depends on the other models
    setAsks("delete");
  };
  const loaded = running.value.find((each) => each.name === model.name);
  const { family, parameter_size, quantization_level } = model.details;
  const facts = [family, parameter_size, quantization_level, bytes(model.size)].filter(Boolean);
  return (
    <li class="card">
      <div class="card-head">
        <strong>{model.name}</strong>
        <span class="card-tools">
          {chats(model) && (
            <a
              class="icon-button"
              href="#/"
              title="Chat"
              aria-label={`Chat with ${model.name}`}
              onClick={() => rememberModel(model.name)}
            >
              <Icon name="chat" />
            </a>
          )}
          {mayChange.value && (
            <>
              <button
                type="button"
                class="icon-button"
                title="Make a model from this one"
                aria-label={`Make a model from ${model.name}`}
                onClick={() => setAsks("make")}
              >
                <Icon name="plus" />
              </button>
              <button
                type="button"
                class="icon-button"
                title="Give it a second name"
                aria-label={`Copy ${model.name}`}
                onClick={() => setAsks("copy")}
              >
                <Icon name="copy" />
              </button>
              {!model.bundled && (
                <button
                  type="button"
                  class="icon-button"
                  title="Delete"
                  aria-label={`Delete ${model.name}`}
                  onClick={askDeletion}
                >
                  <Icon name="trash" />
                </button>
              )}
            </>
          )}
        </span>
      </div>
      <p class="row card-facts">
        <span class="note">{facts.join(" · ")}</span>
        {loaded && <span class="badge live">in memory</span>}
        {model.bundled && <span class="badge">part of chaski</span>}
        <Badges capabilities={model.capabilities} />
      </p>
      {model.bundled && <p class="note">It answers questions about chaski with prewritten texts, and cannot be deleted.</p>}
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
      <details onToggle={(event) => event.currentTarget.open && describe()}>
        <summary>Details</summary>
        {shown && <Details shown={shown} />}
      </details>
      {asks === "make" && <CreateDialog from={model.name} onClose={() => setAsks(null)} />}
      {asks === "copy" && <CopyDialog source={model.name} onClose={() => setAsks(null)} />}
      {asks === "delete" && (
        <Question
          title={`Delete ${model.name}?`}
          text={deletionText(model, loaded !== undefined)}
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
    <>
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
    </>
  );
}
