import { useRef, useState } from "preact/hooks";

import type { Token } from "../conversations/types";

/** The tokens of an answer, shaded by their probability. A token shows its alternatives when pointed at. */
export function Tokens(props: { tokens: Token[]; onChoose?: (place: number, other: Token) => void }) {
  const { tokens, onChoose } = props;
  const [seen, setSeen] = useState(0);
  const [pinned, setPinned] = useState<number | null>(null);
  const list = useRef<HTMLDivElement>(null);
  const place = Math.min(pinned ?? seen, tokens.length - 1);
  const token = tokens[place];
  const moved = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (event.key === "Escape") setPinned(null);
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, place + step));
    setPinned(null);
    setSeen(next);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="tokens">
      <div class="plain" ref={list} role="group" aria-label="Tokens of the answer" onKeyDown={moved}>
        {tokens.map((each, index) => (
          <span
            key={index}
            role="button"
            tabIndex={index === place ? 0 : -1}
            class={`token p${shade(each.logprob)}${index === place ? " chosen" : ""}`}
            aria-label={`${visible(each.text)}, ${percent(each.logprob)}`}
            aria-pressed={index === pinned}
            onMouseEnter={() => setSeen(index)}
            onFocus={() => setSeen(index)}
            onClick={() => setPinned(index === pinned ? null : index)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" && event.key !== " ") return;
              event.preventDefault();
              setPinned(index);
            }}
          >
            {each.text}
          </span>
        ))}
      </div>
      {token && (
        <div class="alternatives" role="group" aria-label="Alternatives">
          <span class="note">
            Token {place + 1} of {tokens.length}: <code>{visible(token.text)}</code> {percent(token.logprob)}
          </span>
          {(token.others ?? []).map((other) => (
            <button
              type="button"
              key={other.text + other.logprob}
              class={other.text === token.text ? "alternative taken" : "alternative"}
              disabled={!onChoose || other.text === token.text}
              onClick={() => onChoose!(place, other)}
            >
              <span class="sr-only">Continue with </span>
              <code>{visible(other.text)}</code>
              <meter min={0} max={1} value={Math.exp(other.logprob)} aria-hidden="true" />
              {percent(other.logprob)}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** From 0 for a nearly certain token to 4 for a surprising one. */
function shade(logprob: number): number {
  return [Math.log(0.9), Math.log(0.6), Math.log(0.3), Math.log(0.1)].filter((limit) => logprob < limit).length;
}

function percent(logprob: number): string {
  const share = 100 * Math.exp(logprob);
  if (share < 0.01) return "< 0.01 %";
  return `${share >= 99.95 ? share.toFixed(0) : share.toPrecision(3)} %`;
}

function visible(text: string): string {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");
}
