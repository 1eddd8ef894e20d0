import type { Figures } from "../conversations/types";

const REASONS: Record<string, string> = { stop: "ended", length: "cut by a limit" };

/** A line with counts and times of an answer. It shows all of them when opened. */
export function FiguresLine({ figures }: { figures: Figures }) {
  const { firstSeconds, rate, promptRate, cachedByTier, proposedTokens, acceptedTokens } = figures;
  const rows: [string, string][] = [
    ["Time to the first token", firstSeconds === undefined ? "" : `${firstSeconds.toFixed(2)} s`],
    ["Tokens a second", rate ? rate.toFixed(1) : ""],
    ["Tokens of the prompt a second", promptRate ? promptRate.toFixed(0) : ""],
    ["Waiting for the model and a free sequence", seconds(figures.loadSeconds)],
    ["Waiting for other answers", seconds(figures.waitSeconds)],
    ["Tokens of the answer", `${figures.answerTokens}`],
    ["Draft tokens", proposedTokens ? `${acceptedTokens} of ${proposedTokens} accepted` : ""],
    ["Tokens of the prompt", `${figures.promptTokens}`],
    ["of them cached", figures.cachedTokens ? `${figures.cachedTokens}${tiers(cachedByTier)}` : "0"],
    ["Tokens left out of the prompt", figures.droppedTokens ? `${figures.droppedTokens}` : ""],
    ["Tokens dropped during the answer", figures.shiftedTokens ? `${figures.shiftedTokens}` : ""],
    ["Context", figures.context ? `${figures.context}` : ""],
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

function seconds(time: number | undefined): string {
  return time !== undefined && time >= 0.005 ? `${time.toFixed(2)} s` : "";
}

function tiers(counts: Record<string, number> | undefined): string {
  const parts = Object.entries(counts ?? {}).filter(([, count]) => count);
  return parts.length ? ` (${parts.map(([tier, count]) => `${tier} ${count}`).join(", ")})` : "";
}
