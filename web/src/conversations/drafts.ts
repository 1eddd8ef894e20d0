// Drafts: what the user has typed and not sent. They are kept by place and tab, and stay after a reload.
import { useEffect, useRef, useState } from "preact/hooks";

import { readDraft, writeDraft } from "./records";
import { isOpen } from "./tabs";

/**
 * Returns the draft of a place, undefined if there is none, and a function to change it.
 *
 * place: begins with the id of the conversation and a slash, so that the drafts are deleted with it.
 * join: joins the kept draft with what was typed before it was read.
 */
export function useDraft<T>(
  place: string,
  join: (kept: T, typed: T) => T = (_, typed) => typed,
): [T | undefined, (change: (now: T | undefined) => T | undefined) => void] {
  const [draft, setDraft] = useState<T | undefined>(undefined);
  const typed = useRef<T | undefined>(undefined);
  const isRead = useRef(false);
  const change = (to: (now: T | undefined) => T | undefined) => {
    const value = to(typed.current);
    typed.current = value;
    setDraft(() => value);
    if (isRead.current) void writeDraft(place, value).catch(() => {});
  };
  useEffect(() => {
    const show = (kept: T | undefined) => {
      isRead.current = true;
      if (kept === undefined && typed.current === undefined) return;
      change((now) => (kept === undefined ? now : now === undefined ? kept : join(kept, now)));
    };
    readDraft(place, async (tab) => !(await isOpen(tab))).then(
      (kept) => show(kept as T | undefined),
      () => show(undefined),
    );
  }, [place]);
  return [draft, change];
}
