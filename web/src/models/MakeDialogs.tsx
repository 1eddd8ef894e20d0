import { useEffect, useState } from "preact/hooks";

import type { ListedModel } from "../server/types";
import { Dialog } from "../shell/Dialog";
import { replacementText } from "./deletion";
import { bytes, models } from "./list";
import { copyModel, createModel, type Recipe } from "./make";

/** Asks for the settings of a new model, and makes it from another model. */
export function CreateDialog({ from, onClose }: { from: string; onClose: () => void }) {
  const [recipe, setRecipe] = useState<Recipe>({ name: "", from, system: "", parameters: "", template: "" });
  const [step, setStep] = useState("");
  const [problem, setProblem] = useState("");
  const [control] = useState(() => new AbortController());
  useEffect(() => () => control.abort(), []); // closing the dialog ends the work
  const set = (changes: Partial<Recipe>) => setRecipe({ ...recipe, ...changes });
  const make = (event: Event) => {
    event.preventDefault();
    setProblem("");
    setStep("beginning");
    createModel({ ...recipe, name: recipe.name.trim() }, setStep, control.signal).then(onClose, (error: Error) => {
      if (control.signal.aborted) return;
      setStep("");
      setProblem(error.message);
    });
  };
  return (
    <Dialog title="Make a model" onClose={onClose}>
      <form class="make" onSubmit={make}>
        <label class="field">
          Name
          <input required value={recipe.name} onInput={(event) => set({ name: event.currentTarget.value })} />
        </label>
        <Replaced name={recipe.name} />
        <label class="field">
          Made from
          <select value={recipe.from} onChange={(event) => set({ from: event.currentTarget.value })}>
            {models.value.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label class="field">
          System prompt
          <textarea rows={3} value={recipe.system} onInput={(event) => set({ system: event.currentTarget.value })} />
        </label>
        <label class="field">
          Parameters, one name and value per line
          <textarea
            class="mono"
            rows={3}
            spellcheck={false}
            placeholder={"temperature 0.2\nnum_ctx 8192"}
            value={recipe.parameters}
            onInput={(event) => set({ parameters: event.currentTarget.value })}
          />
        </label>
        <label class="field">
          Go template, if it differs from the other model's
          <textarea
            class="mono"
            rows={2}
            spellcheck={false}
            value={recipe.template}
            onInput={(event) => set({ template: event.currentTarget.value })}
          />
        </label>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <div class="row end">
          {step && (
            <span class="note" role="status">
              {step}
            </span>
          )}
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={!!step}>
            Make
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Says what happens to the model that has a name already. */
function Replaced({ name }: { name: string }) {
  const text = replacementText(models.value, name);
  return text ? (
    <p class="problem" role="status">
      {text}
    </p>
  ) : null;
}

/** Asks for the second name of a model. */
export function CopyDialog({ source, onClose }: { source: string; onClose: () => void }) {
  const [name, setName] = useState("");
  const [problem, setProblem] = useState("");
  const isSource = (model: ListedModel) => model.name === source;
  const isBundled = models.value.find(isSource)?.bundled;
  const copy = (event: Event) => {
    event.preventDefault();
    copyModel(source, name.trim()).then(onClose, (error: Error) => setProblem(error.message));
  };
  return (
    <Dialog title={`Copy ${source}`} onClose={onClose}>
      <form class="make" onSubmit={copy}>
        <label class="field">
          Second name
          <input required value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <Replaced name={name} />
        <p class="note">
          {isBundled
            ? `The copy takes ${bytes(models.value.find(isSource)!.size)} of the server's disk, since the model is a part of chaski.`
            : "Both names share the weights on disk and in memory."}
        </p>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <div class="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Copy
          </button>
        </div>
      </form>
    </Dialog>
  );
}
