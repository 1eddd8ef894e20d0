// Experts that are in several places: how often tokens found theirs in memory or on a GPU.

import { bytes } from "../models/list";
import type { LayerExperts } from "../server/types";

export interface Hits {
  name: string;
  hits: number;
  note: string;
}

/** Returns the hits of all layers together, and those of the layer with the fewest. */
export function expertsIn(layers: LayerExperts[]): Hits[] {
  const sum = (of: (layer: LayerExperts) => number) => layers.reduce((total, layer) => total + of(layer), 0);
  const requests = sum(({ requests }) => requests);
  const share = requests ? sum(found) / requests : 0;
  const matrices = sum(({ matrices }) => matrices) || 1;
  const room = percent(sum(({ slots }) => slots) / matrices);
  const gpuSlots = sum(({ gpu_slots }) => gpu_slots);
  const onGpu = percent(requests ? sum(({ gpu_hits }) => gpu_hits) / requests : 0);
  const places = gpuSlots
    ? `${onGpu} on a GPU with room for ${percent(gpuSlots / matrices)}, room for ${room} in memory`
    : `room for ${room}`;
  const read = bytes(sum(({ bytes_read }) => bytes_read));
  const all = { name: "All layers", hits: share, note: `${percent(share)} found, ${places}, ${read} read` };
  const used = layers.filter(({ requests }) => requests).sort((a, b) => hitsOf(a) - hitsOf(b));
  const worst = used[0];
  if (!worst || layers.length === 1) return [all];
  return [all, { name: `Layer ${worst.layer}`, hits: hitsOf(worst), note: `${percent(hitsOf(worst))} found, the fewest` }];
}

const found = ({ hits, gpu_hits }: LayerExperts) => hits + gpu_hits;
const hitsOf = (layer: LayerExperts) => found(layer) / layer.requests;
const percent = (share: number) => `${Math.round(100 * share)} %`;
