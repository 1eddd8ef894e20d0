// The models of the store, and those in memory.
import { batch, signal } from "@preact/signals";

import { json, request } from "../server/requests";
import type { ListedModel, RunningModel, ShownModel } from "../server/types";

export const models = signal<ListedModel[]>([]);
export const running = signal<RunningModel[]>([]);
export const modelsProblem = signal("");
/** Whether the key may change models; null until the server has answered. */
export const mayChange = signal<boolean | null>(null);

const shown = new Map<string, Promise<ShownModel>>();

let reading = Promise.resolve();

/** Reads the list of models again. */
export function readModels(): Promise<void> {
  reading = read();
  return reading;
}

/** Waits until the list of models was read, or could not be read. */
export function modelsAreRead(): Promise<void> {
  return reading;
}

async function read(): Promise<void> {
  try {
    const [list, key, loaded] = await Promise.all([
      json<{ models: ListedModel[] }>("GET", "/api/tags"),
      json<{ may_change_models: boolean }>("GET", "/api/key"),
      json<{ models: RunningModel[] }>("GET", "/api/ps"),
    ]);
    shown.clear(); // a name may mean another model now
    batch(() => {
      mayChange.value = key.may_change_models;
      models.value = list.models;
      running.value = loaded.models;
      modelsProblem.value = "";
    });
  } catch (error) {
    modelsProblem.value = (error as Error).message;
  }
}

export async function readRunning(): Promise<void> {
  running.value = (await json<{ models: RunningModel[] }>("GET", "/api/ps")).models;
}

/** Describes a model; asks the server once until the list of models is read again. */
export function show(name: string): Promise<ShownModel> {
  let found = shown.get(name);
  if (!found) {
    found = json<ShownModel>("POST", "/api/show", { model: name });
    found.catch(() => shown.delete(name));
    shown.set(name, found);
  }
  return found;
}

/** Whether a model accepts images. */
export async function sees(name: string): Promise<boolean> {
  return (await show(name)).capabilities.includes("vision");
}

export async function removeModel(name: string): Promise<void> {
  await request("DELETE", "/api/delete", { model: name });
  await readModels();
}

export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}
