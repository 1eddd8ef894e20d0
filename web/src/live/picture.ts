// Shared by both pictures of a cache: the colors of sequences, and a canvas that fits its box.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export function colorOf(sequence: number): string {
  return `hsl(${(172 + sequence * 137.5) % 360} 58% 50%)`;
}

/** A canvas, and the width of its box. */
export function useCanvas(): [RefObject<HTMLCanvasElement | null>, number] {
  const place = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(700);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(120, Math.floor(entry!.contentRect.width))));
    observer.observe(place.current!.parentElement!);
    return () => observer.disconnect();
  }, []);
  return [place, width];
}

/** Resizes and clears a canvas. Its pen has the text color; `free` is the color of unused cells. */
export function penOf(canvas: HTMLCanvasElement, width: number, height: number): [CanvasRenderingContext2D, string] {
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  pen.scale(scale, scale);
  pen.strokeStyle = style.color;
  return [pen, style.getPropertyValue("border-top-color")];
}

/** Marks the pointed-at cell with a ring that is visible on every color; the ring surrounds a small cell. */
export function ring(pen: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  const out = width < 8 ? 1 : -1;
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.strokeRect(x - out, y - out, width + 2 * out, height + 2 * out);
}
