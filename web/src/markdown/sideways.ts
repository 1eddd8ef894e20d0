// Boxes that scroll sideways: tables, code and formulas.
import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

/**
 * A box, and a function that measures it again. While its content is wider than the text around it, the box has the
 * class `wide`, and the keyboard reaches it.
 */
export function useSidewaysScroll<E extends HTMLElement>(): [RefObject<E | null>, () => void] {
  const place = useRef<E>(null);
  const measure = () => {
    if (place.current) mark(place.current, blockAround(place.current));
  };
  useEffect(measure);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(blockAround(place.current!));
    return () => observer.disconnect();
  }, []);
  return [place, measure];
}

function blockAround(box: HTMLElement): HTMLElement {
  return box.parentElement!.closest("p, li, td, th, h2, h3, h4, h5, h6, blockquote, .markdown") ?? box.parentElement!;
}

function mark(box: HTMLElement, around: HTMLElement): void {
  box.classList.remove("wide");
  const isInline = getComputedStyle(box).display === "inline";
  const isWide = isInline ? box.getBoundingClientRect().width > around.clientWidth + 1 : box.scrollWidth > box.clientWidth + 1;
  box.classList.toggle("wide", isWide);
  if (isWide) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
