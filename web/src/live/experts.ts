// Experts that do not all fit into memory: how often tokens found theirs there.

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
  const share = requests ? sum(({ hits }) => hits) / requests : 0;
  const room = sum(({ slots }) => slots) / (sum(({ matrices }) => matrices) || 1);
  const read = bytes(sum(({ bytes_read }) => bytes_read));
  const all = { name: "All layers", hits: share, note: `${percent(share)} found, room for ${percent(room)}, ${read} read` };
  const used = layers.filter(({ requests }) => requests).sort((a, b) => hitsOf(a) - hitsOf(b));
  const worst = used[0];
  if (!worst || layers.length === 1) return [all];
  return [all, { name: `Layer ${worst.layer}`, hits: hitsOf(worst), note: `${percent(hitsOf(worst))} found, the fewest` }];
}

const hitsOf = ({ hits, requests }: LayerExperts) => hits / requests;
const percent = (share: number) => `${Math.round(100 * share)} %`;
