import { useEffect } from "preact/hooks";

import { count } from "../models/memory";
import type { KindProps } from "./Cells";
import { colorOf, penOf, ring, useCanvas } from "./picture";
import type { CacheKind, CacheSlot } from "./watch";
import { cellOf, type Token } from "./ways";

/** Width left of the lanes for the numbers of sequences. */
const LABEL = 26;
const GAP = 3;

/** A lane per sequence with its tokens by position: solid if cells hold them, hatched if a window dropped them. */
export function Positions(props: KindProps) {
  const { kind, slots, chosen, token, onPoint, onChoose } = props;
  const [place, width] = useCanvas();
  const lanes = slots.flatMap((slot, sequence) => (slot.tokens ? [sequence] : []));
  const height = lanes.length > 32 ? 4 : lanes.length > 8 ? 8 : 14;
  const longest = Math.max(1, ...slots.map((slot) => slot.tokens));
  const scale = (width - LABEL) / longest;
  const lane = token ? lanes.indexOf(token.sequence) : -1;
  useEffect(() => {
    if (lanes.length) draw(place.current!, kind, slots, { lanes, height, width, scale, token, chosen });
  });

  const point = (sequence: number | undefined, position: number) => {
    const last = slots[sequence ?? -1]?.tokens;
    if (sequence === undefined || !last) onPoint(null);
    else onPoint({ sequence, position: Math.min(Math.max(position, 0), last - 1) });
  };
  const at = (event: MouseEvent): [sequence: number | undefined, position: number] => {
    const box = place.current!.getBoundingClientRect();
    const position = Math.floor((event.clientX - box.left - LABEL) / scale);
    return [lanes[Math.floor((event.clientY - box.top) / (height + GAP))], position];
  };
  const choose = (sequence: number | undefined) => onChoose(sequence === undefined || sequence === chosen ? null : sequence);
  const press = (event: KeyboardEvent) => {
    const position = token?.position ?? 0;
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      PageUp: 64,
      PageDown: -64,
      Home: -longest,
      End: longest,
    };
    const step = steps[event.key];
    if (step !== undefined) point(lanes[Math.max(lane, 0)], position + step);
    else if (event.key === "ArrowUp") point(lanes[Math.max(lane - 1, 0)], position);
    else if (event.key === "ArrowDown") point(lanes[Math.min(lane + 1, lanes.length - 1)], position);
    else if (event.key === "Enter" || event.key === " ") choose(token?.sequence);
    else return;
    event.preventDefault();
  };
  const what = token && token.position !== null && `sequence ${token.sequence}, position ${count(token.position)}`;
  return (
    <div class="cells-box positions" hidden={!lanes.length}>
      <canvas
        ref={place}
        role="slider"
        tabIndex={0}
        aria-label={`Tokens by position, ${kind.kind}`}
        aria-valuemin={0}
        aria-valuemax={longest - 1}
        aria-valuenow={token?.position ?? 0}
        aria-valuetext={what ? `${what}: ${cellOf(kind, token) === null ? "dropped" : "kept"}` : "no token is pointed at"}
        onMouseMove={(event) => point(...at(event))}
        onMouseLeave={() => onPoint(null)}
        onFocus={() => token === null && point(lanes[0], 0)}
        onBlur={() => onPoint(null)}
        onKeyDown={press}
        onClick={(event) => {
          point(...at(event));
          choose(at(event)[0]);
        }}
      />
    </div>
  );
}

interface Lanes {
  lanes: number[];
  height: number;
  width: number;
  scale: number;
  token: Token | null;
  chosen: number | null;
}

function draw(canvas: HTMLCanvasElement, kind: CacheKind, slots: CacheSlot[], shape: Lanes): void {
  const { lanes, height, width, scale, token, chosen } = shape;
  const [pen, free] = penOf(canvas, width, lanes.length * (height + GAP));
  const shown = token?.sequence ?? chosen;
  const top = (sequence: number) => lanes.indexOf(sequence) * (height + GAP) + 1;
  const ink = String(pen.strokeStyle);
  pen.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const sequence of lanes) {
    const [y, length] = [top(sequence), slots[sequence]!.tokens * scale];
    pen.globalAlpha = shown === null || shown === sequence ? 1 : 0.3;
    pen.fillStyle = ink;
    if (height > 8) pen.fillText(String(sequence), LABEL - 8, y + height / 2 + 0.5);
    pen.fillStyle = free;
    pen.fillRect(LABEL, y, length, height);
    if (!kind.is_state) hatch(pen, LABEL, y, length, height);
  }
  for (const [sequence, , position, length] of kind.runs) {
    if (!slots[sequence]?.tokens) continue;
    const end = Math.round(LABEL + (kind.is_state ? position : position + length) * scale);
    const begin = kind.is_state ? end - 3 : Math.min(Math.round(LABEL + position * scale), end - 1);
    const box: [number, number, number, number] = [Math.max(begin, LABEL), top(sequence), end - begin, height];
    pen.clearRect(...box);
    pen.globalAlpha = shown === null || shown === sequence ? 1 : 0.18;
    pen.fillStyle = colorOf(sequence);
    pen.fillRect(...box);
  }
  if (token && token.position !== null && lanes.includes(token.sequence))
    ring(pen, LABEL + token.position * scale, top(token.sequence), Math.max(1, scale), height - 1);
}

/** Slanted lines, for tokens that are no longer kept. */
function hatch(pen: CanvasRenderingContext2D, left: number, top: number, width: number, height: number): void {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.beginPath();
  for (let x = left - height; x < left + width; x += 5) {
    pen.moveTo(x, top + height);
    pen.lineTo(x + height, top);
  }
  pen.globalAlpha *= 0.45;
  pen.lineWidth = 1;
  pen.stroke();
  pen.restore();
}
