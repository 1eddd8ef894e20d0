// Finds the cells of a sequence, and of one of its tokens, in all kinds of layers.
import { count } from "../models/memory";
import type { CacheKind, CachePicture, CacheSlot } from "./watch";

/** The user's selection: a cell of a kind of layer, or a sequence and perhaps one of its positions. */
export type Pointed = { kind: string; cell: number } | { sequence: number; position: number | null };

/** A sequence, and perhaps one of its tokens. */
export interface Token {
  sequence: number;
  position: number | null;
}

export interface Owner {
  sequence: number;
  position: number;
}

/** The owners of each used cell. */
export function ownersOf(kind: CacheKind): Map<number, Owner[]> {
  const found = new Map<number, Owner[]>();
  for (const [sequence, first, position, length, step] of kind.runs)
    for (let index = 0; index < length; index++) {
      const owner = { sequence, position: position + index };
      const cell = first + index * step;
      const there = found.get(cell);
      if (there) there.push(owner);
      else found.set(cell, [owner]);
    }
  return found;
}

/** The selected token; for a shared cell, the token of the first sequence. */
export function tokenAt(picture: CachePicture, pointed: Pointed | null): Token | null {
  if (!pointed || "sequence" in pointed) return pointed;
  for (const kind of picture.kinds)
    if (kind.kind === pointed.kind)
      for (const [sequence, first, position, length, step] of kind.runs) {
        const index = (pointed.cell - first) / step;
        if (index >= 0 && index < length && Number.isInteger(index))
          return { sequence, position: kind.is_state ? position - 1 : position + index };
      }
  return null;
}

/** The cell of a token; for states, the first state that has read it. Null if no cell holds it any more. */
export function cellOf(kind: CacheKind, { sequence, position }: Token): number | null {
  if (position === null) return null;
  let best: [after: number, cell: number] | null = null;
  for (const [owner, first, start, length, step] of kind.runs) {
    if (owner !== sequence) continue;
    if (!kind.is_state && position >= start && position < start + length) return first + (position - start) * step;
    if (kind.is_state && start > position && (!best || start < best[0])) best = [start, first];
  }
  return best?.[1] ?? null;
}

/** The number of tokens of a sequence in cells of a kind. */
export function keptOf(kind: CacheKind, sequence: number): number {
  return kind.runs.reduce((all, [owner, , , length]) => (owner === sequence ? all + length : all), 0);
}

/** The number of tokens of all sequences that a window has dropped. */
export function droppedOf(kind: CacheKind, slots: CacheSlot[]): number {
  if (kind.is_state) return 0;
  return slots.reduce((all, slot, sequence) => all + Math.max(0, slot.tokens - keptOf(kind, sequence)), 0);
}

/** Describes in a sentence what a kind of layer holds of the selection. */
export function sentence(
  kind: CacheKind,
  owners: Map<number, Owner[]>,
  slots: CacheSlot[],
  pointed: Pointed | null,
  token: Token | null,
): string {
  if (pointed && "kind" in pointed && pointed.kind === kind.kind) return ofCell(kind, pointed.cell, owners.get(pointed.cell));
  if (!token) return "Point at a cell or a token, or move there with Tab and the arrow keys.";
  if (token.position === null) return ofSequence(kind, token.sequence, slots);
  const cell = cellOf(kind, token);
  if (cell !== null) return ofCell(kind, cell, owners.get(cell));
  const name = `sequence ${token.sequence}, position ${count(token.position)}`;
  return kind.is_state ? `No kept state has read ${name}.` : `The window has dropped ${name}.`;
}

function ofCell(kind: CacheKind, cell: number, owners: Owner[] | undefined): string {
  const name = `${kind.is_state ? "Row" : "Cell"} ${count(cell)}`;
  if (!owners) return `${name} is free.`;
  const what = (owner: Owner) =>
    kind.is_state
      ? `sequence ${owner.sequence} after ${count(owner.position)} tokens`
      : `sequence ${owner.sequence}, position ${count(owner.position)}`;
  return `${name}: ${owners.map(what).join("; ")}${owners.length > 1 ? " (shared)" : ""}.`;
}

function ofSequence(kind: CacheKind, sequence: number, slots: CacheSlot[]): string {
  const kept = keptOf(kind, sequence);
  if (kind.is_state) return `Sequence ${sequence}: ${count(kept)} ${kept === 1 ? "state" : "states"}.`;
  const dropped = Math.max(0, (slots[sequence]?.tokens ?? 0) - kept);
  return `Sequence ${sequence}: ${count(kept)} tokens are here${dropped ? `, ${count(dropped)} dropped by the window` : ""}.`;
}
