import type { Figures } from "../conversations/types";

const REASONS: Record<string, string> = { stop: "ended", length: "cut by a limit" };

/** Counts and times of an answer in a line; all of them when it is opened. */
export function FiguresLine({ figures }: { figures: Figures }) {
  const { firstSeconds, rate, cachedByTier } = figures;
  const rows: [string, string][] = [
    ["Time to the first token", firstSeconds === undefined ? "" : `${firstSeconds.toFixed(2)} s`],
    ["Tokens a second", rate ? rate.toFixed(1) : ""],
    ["Loading the model", figures.loadSeconds > 0.05 ? `${figures.loadSeconds.toFixed(2)} s` : ""],
    ["Tokens of the answer", `${figures.answerTokens}`],
    ["Tokens of the prompt", `${figures.promptTokens}`],
    ["of them cached", figures.cachedTokens ? `${figures.cachedTokens}${tiers(cachedByTier)}` : "0"],
    ["Tokens left out of the prompt", figures.droppedTokens ? `${figures.droppedTokens}` : ""],
    ["Tokens forgotten on the way", figures.shiftedTokens ? `${figures.shiftedTokens}` : ""],
    ["End", REASONS[figures.reason] ?? figures.reason],
  ];
  const short = [
    rate && `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`,
    firstSeconds !== undefined && `first after ${firstSeconds.toFixed(2)} s`,
    figures.droppedTokens > 0 && `${figures.droppedTokens} left out`,
    figures.reason === "length" && "cut",
  ];
  return (
    <details class="figures">
      <summary>{short.filter(Boolean).join(" · ") || "Figures"}</summary>
      <dl>
        {rows
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </details>
  );
}

function tiers(counts: Record<string, number> | undefined): string {
  const parts = Object.entries(counts ?? {}).filter(([, count]) => count);
  return parts.length ? ` (${parts.map(([tier, count]) => `${tier} ${count}`).join(", ")})` : "";
}
