"""Measure the gain from a draft model: `python -m benchmarks.drafting MODEL DRAFT`.

Without DRAFT, the model's own heads propose: `python -m benchmarks.drafting MODEL`.

Both models compute as for any answer. Only the chosen tokens are replaced, because models with random weights
never agree: the large model writes a given text, and the small one proposes each token of it with a given
probability. The same answer is made with and without proposals, in turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

import chaski
from benchmarks.speculation import MAX_PROPOSED, Answer, as_json, decode
from chaski.model.block_program import BlockProgram
from chaski.model.chain_program import ChainProgram
from chaski.model.program import Program, Run
from chaski.model.proposing import ProposalRequest, ProposingProgram
from chaski.runner.speculation.draft_model import DraftModel
from chaski.runner.speculation.own_heads import OwnHeads, Proposer
from chaski.runner.speculation.speculator import Draft

PROMPT, ANSWER = 200, 96


class Chance:
    """A text whose tokens are proposed with a given probability."""

    def __init__(self, vocab_size: int) -> None:
        self.text: list[int] = []
        self.chance = 0.0
        self._random = np.random.default_rng(2)
        self._vocab_size = vocab_size

    def token(self, position: int) -> int:
        """Return the token at a position, or a wrong one."""
        is_right = position < len(self.text) and self._random.random() < self.chance
        return self.text[position] if is_right else int(self._random.integers(self._vocab_size))


class ChanceRun:
    """Replaces a run of a draft model: its top tokens are correct with a given probability."""

    def __init__(self, run: Run, positions: Sequence[int], chance: Chance) -> None:
        self._run = run
        self._positions = positions
        self._chance = chance

    def top_logits(self) -> np.ndarray:
        found = self._run.top_logits()
        for row, position in zip(found, self._positions, strict=True):
            row[1, 0] = self._chance.token(position)
        return found


class ChanceProgram:
    """Replaces the program of a draft model."""

    def __init__(self, program: Program, chance: Chance) -> None:
        self.max_tokens, self.max_outputs = program.max_tokens, program.max_outputs
        self.prepare, self.wait = program.prepare, program.wait
        self._program = program
        self._chance = chance

    def launch(self, values: Mapping[str, np.ndarray], num_top_logits: Sequence[int]) -> ChanceRun:
        after = values["positions"][values["outputs"]] + 1
        return ChanceRun(self._program.launch(values, num_top_logits), after.tolist(), self._chance)


class ChanceHeads:
    """Replaces the program of a model's own heads, or of an attached draft."""

    def __init__(self, program: ProposingProgram | ChainProgram | BlockProgram, chance: Chance) -> None:
        self.cache, self.most_tokens = program.cache, program.most_tokens
        self._program = program
        self._chance = chance

    def propose(self, requests: Sequence[ProposalRequest]) -> None:
        self._program.propose(requests)
        for each in requests:
            first = each.position + 1
            each.proposed[:] = [self._chance.token(first + index) for index in range(len(each.proposed))]


def main() -> None:
    arguments = _arguments()
    random = np.random.default_rng(1)
    with chaski.load(arguments.model, threads=arguments.threads, context=512, draft=arguments.draft) as model:
        draft = model.engine.draft
        chance = Chance(model.vocab_size)
        stand_in(draft, chance)
        measured = {}
        for chance.chance in arguments.chance:
            measured[chance.chance] = [turns(model, draft, chance, random) for _ in range(arguments.repeat)]
    print(as_json(measured[arguments.chance[0]]) if arguments.json else _table(measured))


def _table(measured: dict[float, list[tuple[Answer, Answer]]]) -> str:
    lines = ["| chance | plain, tok/s | with proposals, tok/s | ratio | accepted |", "|--:|--:|--:|--:|--:|"]
    for chance, pairs in measured.items():
        plain, drafted = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
        ratio = statistics.median(drafted.rate / plain.rate for plain, drafted in pairs)
        accepted = statistics.median(drafted.accepted for _, drafted in pairs)
        lines.append(f"| {chance:.0%} | {plain:.1f} | {drafted:.1f} | **{ratio:.2f}** | {accepted:.0%} |")
    return "\n".join(lines)


def stand_in(draft: Draft | None, chance: Chance) -> None:
    """Replace the proposing program by a random one."""
    match draft:
        case DraftModel():
            draft._program = ChanceProgram(draft._program, chance)  # type: ignore[assignment]
        case OwnHeads():
            for name in ("_whole", "_common"):
                proposer: Proposer | None = getattr(draft, name)
                if proposer is not None:
                    program: Any = ChanceHeads(proposer.program, chance)
                    setattr(draft, name, replace(proposer, program=program))
        case _:
            raise SystemExit("the model has no heads of its own: name a draft model")


def turns(
    model: chaski.LLM, draft: Draft | None, chance: Chance, random: np.random.Generator
) -> tuple[Answer, Answer]:
    """Make the answer without and with proposals."""
    # The first tokens of a vocabulary are the most frequent ones.
    text = random.integers(model.vocab_size // 8, size=PROMPT + ANSWER).tolist()
    prompt, answer = text[:PROMPT], text[PROMPT:]
    chance.text = text
    decode(model, prompt, answer[:4], 1, draft)  # so that neither side computes the prompt
    return decode(model, prompt, answer, 0), decode(model, prompt, answer, MAX_PROPOSED, draft)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft", nargs="?", help="by default the model's own heads")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=3, help="answers for each chance")
    parser.add_argument("--chance", type=float, nargs="+", default=[0.0, 0.4, 0.6, 0.7, 0.8, 0.9])
    parser.add_argument("--json", action="store_true", help="print one JSON object, of the first chance")
    return parser.parse_args()


if __name__ == "__main__":
    main()
