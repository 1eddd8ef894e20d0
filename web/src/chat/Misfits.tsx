// Says what the chosen model cannot do before a question is sent, and offers models that can.
import type { ComponentChildren } from "preact";

import { misfits, type Needs } from "../models/choice";
import { models } from "../models/list";

export interface Fit {
  /** Whether the server would refuse the question. */
  isRefused: boolean;
  notice: ComponentChildren;
}

const MOST = 3;

/** Compares a model with the needs of the next question. */
export function fitOf(name: string, needs: Needs, onModel: (name: string) => void): Fit {
  const all = models.value;
  const found = name && all.length ? misfits(all.find(isNamed(name)), needs) : [];
  if (!found.length) return { isRefused: false, notice: null };
  const able = all.filter((model) => !model.bundled && !misfits(model, needs).length).slice(0, MOST);
  const notice = (
    <div class="warning misfits" role="alert">
      <span>
        <strong>{name}</strong> {found.map(({ problem }) => problem).join(", and ")}.
      </span>
      {able.map((model) => (
        <button type="button" key={model.name} onClick={() => onModel(model.name)}>
          Use {model.name}
        </button>
      ))}
      {!able.length && <a href="#/models">Get a model that can</a>}
    </div>
  );
  return { isRefused: found.some(({ isRefused }) => isRefused), notice };
}

function isNamed(name: string) {
  return (model: { name: string }) => model.name === name;
}
