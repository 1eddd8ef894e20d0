// What both pictures of a cache share: the colors of sequences, and a canvas that fits its box.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export function colorOf(sequence: number): string {
  return `hsl(${(172 + sequence * 137.5) % 360} 58% 50%)`;
}

/** A canvas, and the width of the box that it is in. */
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

/** Clears a canvas of that size. Its pen has the color of text; `free` is the color of what is not taken. */
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

/** A ring on what is pointed at, which is seen on every color; around it where it is small. */
export function ring(pen: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  const out = width < 8 ? 1 : -1;
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.strokeRect(x - out, y - out, width + 2 * out, height + 2 * out);
}
