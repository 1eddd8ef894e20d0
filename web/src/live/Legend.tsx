import type { ComponentChildren } from "preact";

import { colorOf } from "./picture";
import type { CacheKind } from "./watch";

/** Explains the squares and lines of the picture of a cache. */
export function Legend({ kinds }: { kinds: CacheKind[] }) {
  const hasStates = kinds.some((kind) => kind.is_state);
  const hasWindow = kinds.some((kind) => kind.kind.startsWith("the last"));
  return (
    <div class="legend">
      <p class="note">
        Each square is a cell: the place of one token that the model has read or written. A sequence is the tokens of one
        conversation. Below the squares, each sequence has a line from its first token to its last.
        {hasStates && " A row of states keeps what a layer remembers after a number of tokens."}
      </p>
      <ul aria-label="Legend">
        <Entry text="a cell in the color of its sequence">
          <rect width="12" height="12" fill={colorOf(0)} />
        </Entry>
        <Entry text="shared by sequences that begin alike">
          <rect width="12" height="12" fill={colorOf(0)} />
          <rect x="4" y="4" width="4" height="4" fill={colorOf(1)} />
        </Entry>
        <Entry text="free">
          <rect class="free" width="12" height="12" />
        </Entry>
        {hasWindow && (
          <Entry text="dropped: these layers keep only the last tokens">
            <rect class="free" width="12" height="12" />
            <path class="hatch" d="M0 12L12 0M0 5L5 0M7 12L12 7" />
          </Entry>
        )}
        <Entry text="pointed at">
          <rect class="ring" x="1" y="1" width="10" height="10" />
        </Entry>
      </ul>
    </div>
  );
}

function Entry({ text, children }: { text: string; children: ComponentChildren }) {
  return (
    <li>
      <svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">
        {children}
      </svg>
      {text}
    </li>
  );
}
