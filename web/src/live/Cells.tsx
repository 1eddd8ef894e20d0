import { useEffect, useMemo } from "preact/hooks";

import { count } from "../models/memory";
import { Positions } from "./Positions";
import { colorOf, penOf, ring, useCanvas } from "./picture";
import type { CacheKind, CacheSlot } from "./watch";
import { cellOf, droppedOf, type Owner, ownersOf, type Pointed, sentence, type Token } from "./ways";

const MOST_HEIGHT = 360;
const SIZES = [14, 10, 8, 6, 5, 4, 3, 2, 1];

export interface KindProps {
  kind: CacheKind;
  slots: CacheSlot[];
  chosen: number | null;
  pointed: Pointed | null;
  token: Token | null;
  onPoint: (pointed: Pointed | null) => void;
  onChoose: (sequence: number | null) => void;
}

/**
 * The cells of one kind of layer, each in the color of its sequence; shared cells have a second color inside.
 * Below them the tokens of each sequence by position.
 */
export function Cells(props: KindProps) {
  const { kind, slots, chosen, pointed, token, onPoint, onChoose } = props;
  const [place, width] = useCanvas();
  const owners = useMemo(() => ownersOf(kind), [kind]);
  const size = SIZES.find((each) => Math.ceil(kind.cells / Math.floor(width / each)) * each <= MOST_HEIGHT) ?? 1;
  const columns = Math.max(1, Math.floor(width / size));
  const rows = Math.ceil(kind.cells / columns);
  const marked = pointed && "kind" in pointed && pointed.kind === kind.kind ? pointed.cell : token && cellOf(kind, token);
  const shown = token?.sequence ?? chosen;
  useEffect(() => draw(place.current!, kind.cells, owners, { size, columns, rows, shown, marked }));

  const cellAt = (event: MouseEvent): Pointed | null => {
    const box = place.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * columns + column;
    return column < columns && cell >= 0 && cell < kind.cells ? { kind: kind.kind, cell } : null;
  };
  const choose = (cell: number) => {
    const owner = owners.get(cell)?.[0];
    onChoose(owner === undefined || owner.sequence === chosen ? null : owner.sequence);
  };
  const press = (event: KeyboardEvent) => {
    const cell = marked ?? 0;
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -columns,
      ArrowDown: columns,
      Home: -cell,
      End: kind.cells - 1 - cell,
    };
    const step = steps[event.key];
    if (step !== undefined) onPoint({ kind: kind.kind, cell: Math.min(Math.max(cell + step, 0), kind.cells - 1) });
    else if (event.key === "Enter" || event.key === " ") choose(cell);
    else return;
    event.preventDefault();
  };
  const held = owners.size;
  const shared = [...owners.values()].filter((list) => list.length > 1).length;
  const dropped = droppedOf(kind, slots);
  const told = sentence(kind, owners, slots, pointed, token);
  return (
    <section class="card cells" aria-label={`Cells: ${kind.kind}`}>
      <div class="row">
        <strong>{kind.kind}</strong>
        <span class="note">
          {`${count(held)} of ${count(kind.cells)} ${kind.is_state ? "rows" : "cells"} taken`}
          {shared > 0 && `, ${count(shared)} shared`}
          {dropped > 0 && `; ${count(dropped)} tokens dropped by the window (hatched)`}
        </span>
      </div>
      <div class="cells-box">
        <canvas
          ref={place}
          role="slider"
          tabIndex={0}
          aria-label={`Cells of ${kind.kind}`}
          aria-valuemin={0}
          aria-valuemax={kind.cells - 1}
          aria-valuenow={marked ?? 0}
          aria-valuetext={told}
          onMouseMove={(event) => onPoint(cellAt(event))}
          onMouseLeave={() => onPoint(null)}
          onFocus={() => token === null && onPoint({ kind: kind.kind, cell: kind.runs[0]?.[1] ?? 0 })}
          onBlur={() => onPoint(null)}
          onKeyDown={press}
          onClick={(event) => {
            const cell = cellAt(event);
            onPoint(cell);
            if (cell && "cell" in cell) choose(cell.cell);
          }}
        />
      </div>
      <Positions {...props} />
      <p class="note pointed">{told}</p>
    </section>
  );
}

interface Grid {
  size: number;
  columns: number;
  rows: number;
  shown: number | null;
  marked: number | null;
}

function draw(canvas: HTMLCanvasElement, cells: number, owners: Map<number, Owner[]>, grid: Grid): void {
  const { size, columns, rows, shown, marked } = grid;
  const [pen, free] = penOf(canvas, columns * size, rows * size);
  const gap = size > 3 ? 1 : 0;
  const corner = (cell: number): [number, number] => [(cell % columns) * size, Math.floor(cell / columns) * size];
  pen.fillStyle = free;
  for (let cell = 0; cell < cells; cell++) pen.fillRect(...corner(cell), size - gap, size - gap);
  for (const [cell, list] of owners) {
    const [x, y] = corner(cell);
    const isOn = shown === null || list.some((owner) => owner.sequence === shown);
    pen.globalAlpha = isOn ? 1 : 0.18;
    pen.fillStyle = colorOf(list[0]!.sequence);
    pen.fillRect(x, y, size - gap, size - gap);
    if (list.length > 1 && size > 3) {
      const inner = Math.max(1, Math.round(size / 3));
      pen.fillStyle = colorOf(list[1]!.sequence);
      pen.fillRect(x + inner - (gap ? 0.5 : 0), y + inner - (gap ? 0.5 : 0), size - 2 * inner, size - 2 * inner);
    }
  }
  if (marked !== null) ring(pen, ...corner(marked), size - gap, size - gap);
}
