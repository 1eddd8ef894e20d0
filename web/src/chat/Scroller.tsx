import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Icon } from "../shell/Icon";
import { asked } from "./answering";

/** Pixels from the end within which the end counts as visible. */
const NEAR = 40;

/** Keeps the end visible while the content grows, unless the reader has scrolled up. What was just asked is always shown. */
export function Scroller({ isRunning, children }: { isRunning: boolean; children: ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const lastTop = useRef(0);
  const [isEndVisible, setEndVisible] = useState(true);

  const look = (box: HTMLElement, isScrolled: boolean) => {
    const distance = box.scrollHeight - box.scrollTop - box.clientHeight;
    if (isScrolled) {
      // Content that grows does not move the top, and content that shrinks leaves the end visible.
      if (box.scrollTop < lastTop.current && distance > 1) follows.current = false;
      else if (distance < NEAR) follows.current = true;
    }
    lastTop.current = box.scrollTop;
    setEndVisible(distance < NEAR);
  };
  const settle = () => {
    const box = place.current;
    if (!box) return;
    if (follows.current) box.scrollTop = box.scrollHeight;
    look(box, false);
  };
  const goToEnd = () => {
    follows.current = true;
    settle();
  };
  useEffect(() => {
    const observer = new ResizeObserver(settle);
    observer.observe(place.current!);
    observer.observe(place.current!.firstElementChild!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => asked.subscribe(goToEnd), []);

  /** What the reader opens stays where it is. */
  const onClick = (event: Event) => {
    const opened = (event.target as Element).closest("summary, button");
    if (opened && !isRunning) follows.current = false;
  };
  return (
    <div class="messages">
      <div
        class="scroller"
        ref={place}
        onScroll={(event) => look(event.currentTarget, true)}
        tabIndex={0}
        role="region"
        aria-label="Messages"
      >
        <div class="turns" role="log" aria-live="off" aria-label="Conversation" onClickCapture={onClick}>
          {children}
        </div>
        <p class="sr-only" role="status">
          {isRunning ? "The answer is being written" : ""}
        </p>
      </div>
      {!isEndVisible && (
        <button
          type="button"
          class="to-end"
          aria-label="To the end"
          title="To the end"
          onClick={() => {
            goToEnd();
            place.current?.focus({ preventScroll: true });
          }}
        >
          <Icon name="lower" />
        </button>
      )}
    </div>
  );
}
