import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

import { json, request } from "../server/requests";
import { Icon } from "../shell/Icon";
import { matching } from "./choice";
import { mayChange, models } from "./list";

interface Adapter {
  id: number;
  path: string;
  scale: number;
  name: string;
  model: string;
}

const adapters = signal<Adapter[]>([]);

async function readAdapters(): Promise<void> {
  adapters.value = await json<Adapter[]>("GET", "/lora-adapters");
}

/** The LoRA adapters that are loaded on this server. Each name works as a model name. */
export function Adapters() {
  const [problem, setProblem] = useState("");
  const act = (work: Promise<unknown>) => {
    setProblem("");
    work.then(readAdapters).catch((error: Error) => setProblem(error.message));
  };
  useEffect(() => act(Promise.resolve()), [mayChange.value]); // a new key may see other adapters
  return (
    <section class="card" aria-label="LoRA adapters">
      <h2>LoRA adapters</h2>
      <p class="note">An adapter's name works as a model name. Its scale applies to requests that choose no adapters.</p>
      <ul class="adapters">
        {adapters.value.map((each) => (
          <li class="row" key={each.id}>
            <strong>{each.name}</strong>
            <span class="note">
              {each.path}, for {each.model}
            </span>
            <label class="field scale">
              Scale
              <input
                type="number"
                step={0.1}
                aria-label={`Scale of ${each.name}`}
                value={each.scale}
                disabled={!mayChange.value}
                onChange={(event) => act(setScale(each.id, event.currentTarget.valueAsNumber || 0))}
              />
            </label>
            {mayChange.value && (
              <button
                type="button"
                class="icon-button"
                aria-label={`Unload ${each.name}`}
                onClick={() => act(request("POST", "/v1/unload_lora_adapter", { lora_name: each.name }))}
              >
                <Icon name="trash" />
              </button>
            )}
          </li>
        ))}
      </ul>
      {mayChange.value && <Load onLoad={(body) => act(request("POST", "/v1/load_lora_adapter", body))} />}
      {!mayChange.value && !adapters.value.length && <p class="note">No adapter is loaded.</p>}
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
    </section>
  );
}

function setScale(id: number, scale: number): Promise<Response> {
  const scales = adapters.value.map((each) => ({ id: each.id, scale: each.id === id ? scale : each.scale }));
  return request("POST", "/lora-adapters", scales);
}

function Load({ onLoad }: { onLoad: (body: Record<string, string>) => void }) {
  const [name, setName] = useState("");
  const [path, setPath] = useState("");
  const [base, setBase] = useState("");
  const names = matching(models.value, "").map((model) => model.name); // models that chat come first
  const load = (event: Event) => {
    event.preventDefault();
    onLoad({ lora_name: name.trim(), lora_path: path.trim(), base_model_name: base || names[0] || "" });
  };
  return (
    <form class="sizes" onSubmit={load}>
      <label class="field">
        Adapter's name
        <input required value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label class="field path">
        File in the server's folder of adapters
        <input required value={path} onInput={(event) => setPath(event.currentTarget.value)} />
      </label>
      <label class="field path">
        For the model
        <select value={base || names[0]} onChange={(event) => setBase(event.currentTarget.value)}>
          {names.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      <button type="submit">Load</button>
    </form>
  );
}
