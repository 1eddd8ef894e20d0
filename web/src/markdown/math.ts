// Renders maths with KaTeX as elements; loaded with the first formula.
import katex from "katex";

export function drawMath(target: HTMLElement, tex: string, isBlock: boolean): void {
  try {
    katex.render(tex, target, { displayMode: isBlock, throwOnError: true, trust: false, maxExpand: 300, maxSize: 20 });
  } catch {
    target.textContent = tex;
    target.classList.add("unread-math");
  }
}
