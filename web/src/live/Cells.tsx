import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { count } from "../models/memory";
import type { CacheKind } from "./watch";

const MOST_HEIGHT = 360;
const SIZES = [14, 10, 8, 6, 5, 4, 3, 2, 1];

/** The cells of one kind of layers, each in the color of its sequence; shared ones have a second color inside. */
export function Cells(props: { kind: CacheKind; chosen: number | null; onChoose: (sequence: number | null) => void }) {
  const { kind, chosen, onChoose } = props;
  const place = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(700);
  const [pointed, setPointed] = useState<number | null>(null);
  const owners = useMemo(() => ownersOf(kind), [kind]);
  const size = SIZES.find((each) => Math.ceil(kind.cells / Math.floor(width / each)) * each <= MOST_HEIGHT) ?? 1;
  const columns = Math.max(1, Math.floor(width / size));
  const rows = Math.ceil(kind.cells / columns);

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(120, Math.floor(entry!.contentRect.width))));
    observer.observe(place.current!.parentElement!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => draw(place.current!, kind.cells, owners, { size, columns, rows, chosen }));

  const cellAt = (event: MouseEvent) => {
    const box = place.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * columns + column;
    return column < columns && cell >= 0 && cell < kind.cells ? cell : null;
  };
  const held = owners.size;
  const shared = [...owners.values()].filter((list) => list.length > 1).length;
  return (
    <section class="card cells" aria-label={`Cells: ${kind.kind}`}>
      <div class="row">
        <strong>{kind.kind}</strong>
        <span class="note">
          {`${count(held)} of ${count(kind.cells)} ${kind.is_state ? "rows" : "cells"} taken`}
          {shared > 0 && `, ${count(shared)} shared`}
        </span>
      </div>
      <div class="cells-box">
        <canvas
          ref={place}
          role="img"
          aria-label={`${count(held)} of ${count(kind.cells)} cells taken, ${count(shared)} shared`}
          onMouseMove={(event) => setPointed(cellAt(event))}
          onMouseLeave={() => setPointed(null)}
          onClick={(event) => {
            const cell = cellAt(event);
            const owner = cell === null ? undefined : owners.get(cell)?.[0];
            setPointed(cell);
            onChoose(owner === undefined || owner.sequence === chosen ? null : owner.sequence);
          }}
        />
      </div>
      <p class="note pointed">{pointed === null ? "Point at a cell." : sentence(kind, pointed, owners.get(pointed))}</p>
    </section>
  );
}

export function colorOf(sequence: number): string {
  return `hsl(${(172 + sequence * 137.5) % 360} 58% 50%)`;
}

interface Owner {
  sequence: number;
  position: number;
}

function ownersOf(kind: CacheKind): Map<number, Owner[]> {
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

function sentence(kind: CacheKind, cell: number, owners: Owner[] | undefined): string {
  const name = `${kind.is_state ? "Row" : "Cell"} ${count(cell)}`;
  if (!owners) return `${name} is free.`;
  const what = (owner: Owner) =>
    kind.is_state
      ? `sequence ${owner.sequence} after ${count(owner.position)} tokens`
      : `sequence ${owner.sequence}, position ${count(owner.position)}`;
  return `${name}: ${owners.map(what).join("; ")}${owners.length > 1 ? " (shared)" : ""}.`;
}

interface Grid {
  size: number;
  columns: number;
  rows: number;
  chosen: number | null;
}

function draw(canvas: HTMLCanvasElement, cells: number, owners: Map<number, Owner[]>, grid: Grid): void {
  const { size, columns, rows, chosen } = grid;
  const scale = devicePixelRatio || 1;
  canvas.width = columns * size * scale;
  canvas.height = rows * size * scale;
  canvas.style.width = `${columns * size}px`;
  canvas.style.height = `${rows * size}px`;
  const pen = canvas.getContext("2d")!;
  pen.scale(scale, scale);
  const gap = size > 3 ? 1 : 0;
  pen.fillStyle = getComputedStyle(canvas).getPropertyValue("border-top-color");
  for (let cell = 0; cell < cells; cell++)
    pen.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - gap, size - gap);
  for (const [cell, list] of owners) {
    const [x, y] = [(cell % columns) * size, Math.floor(cell / columns) * size];
    const isOn = chosen === null || list.some((owner) => owner.sequence === chosen);
    pen.globalAlpha = isOn ? 1 : 0.18;
    pen.fillStyle = colorOf(list[0]!.sequence);
    pen.fillRect(x, y, size - gap, size - gap);
    if (list.length > 1 && size > 3) {
      const inner = Math.max(1, Math.round(size / 3));
      pen.fillStyle = colorOf(list[1]!.sequence);
      pen.fillRect(x + inner - (gap ? 0.5 : 0), y + inner - (gap ? 0.5 : 0), size - 2 * inner, size - 2 * inner);
    }
  }
  pen.globalAlpha = 1;
}
