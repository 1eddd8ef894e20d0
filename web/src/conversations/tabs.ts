// The tabs of this page in one browser tell each other what they have written.
import { newId } from "../ids";

/** What a tab tells: records that it has written, a tab that it asks for, or that it is open or closes. */
export type Note =
  | { kind: "written"; id: string; messages: string[] }
  | { kind: "asks"; tab: string }
  | { kind: "open"; tab: string }
  | { kind: "closes"; tab: string };

const NAME = "chaski.tab";
/** Milliseconds in which an open tab answers. */
const REPLY = 500;

let channel: BroadcastChannel | undefined;
const listeners: ((note: Note) => void)[] = [];
const waiting = new Map<string, Set<(isOpen: boolean) => void>>();

/** The name of this tab, which it keeps when it is loaded again. */
export function thisTab(): string {
  const name = sessionStorage.getItem(NAME) ?? newId();
  sessionStorage.setItem(NAME, name);
  return name;
}

/** Hears other tabs until the page closes. */
export function hearTabs(hear: (note: Note) => void): void {
  listeners.push(hear);
  if (channel) return;
  channel = new BroadcastChannel("chaski");
  channel.onmessage = ({ data }: MessageEvent<Note>) => {
    if (data.kind === "asks" && data.tab === thisTab()) tell({ kind: "open", tab: data.tab });
    if (data.kind === "open" || data.kind === "closes") settle(data.tab, data.kind === "open");
    for (const listener of listeners) listener(data);
  };
  addEventListener("pagehide", () => tell({ kind: "closes", tab: thisTab() }));
  // A duplicate of a tab begins with the name of the other one.
  void isOpen(thisTab()).then((isDuplicate) => isDuplicate && sessionStorage.setItem(NAME, newId()));
}

export function tell(note: Note): void {
  channel?.postMessage(note);
}

/** Whether a tab is still open. One that the browser has frozen is not. */
export function isOpen(tab: string): Promise<boolean> {
  return new Promise((resolve) => {
    if (!waiting.has(tab)) waiting.set(tab, new Set());
    waiting.get(tab)!.add(resolve);
    tell({ kind: "asks", tab });
    setTimeout(() => settle(tab, false), REPLY);
  });
}

function settle(tab: string, isOpen: boolean): void {
  for (const resolve of waiting.get(tab) ?? []) resolve(isOpen);
  waiting.delete(tab);
}
