"""Measures what a draft model brings: `python -m benchmarks.drafting MODEL DRAFT`.

Both models are computed as for any answer. Only what their logits would choose is replaced, because random
weights agree on nothing: the large one says a given text, and the small one proposes each token of it with a
given chance. The same answer is made with and without the draft model, in turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

import chaski
from benchmarks.speculation import MAX_PROPOSED, decode
from chaski.model.program import Program
from chaski.runner.speculation.draft_model import DraftModel

PROMPT, ANSWER = 200, 96


class ChanceProgram:
    """Stands for the program of a draft model: its top token is the right one by chance."""

    def __init__(self, program: Program, vocab_size: int) -> None:
        self.text: list[int] = []
        self.chance = 0.0
        self.max_tokens, self.max_outputs = program.max_tokens, program.max_outputs
        self.prepare, self.wait = program.prepare, program.wait
        self._program = program
        self._random = np.random.default_rng(2)
        self._vocab_size = vocab_size
        self._next = np.zeros(0, np.int64)

    def launch(self, values: Mapping[str, np.ndarray], num_top_logits: Sequence[int]) -> None:
        self._next = values["positions"][values["outputs"]] + 1
        self._program.launch(values, num_top_logits)

    def top_logits(self) -> np.ndarray:
        found = self._program.top_logits()
        for row, position in zip(found, self._next.tolist(), strict=True):
            is_right = position < len(self.text) and self._random.random() < self.chance
            row[1, 0] = self.text[position] if is_right else self._random.integers(self._vocab_size)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chance", type=float, nargs="+", default=[0.0, 0.4, 0.6, 0.8, 0.9])
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    with chaski.load(arguments.model, threads=arguments.threads, context=512, draft=arguments.draft) as model:
        draft = model.engine.draft
        assert draft is not None
        program = ChanceProgram(draft._program, model.vocab_size)
        draft._program = program  # type: ignore[assignment]
        print("| chance | plain, tok/s | with the draft, tok/s | ratio | accepted |\n|--:|--:|--:|--:|--:|")
        for chance in arguments.chance:
            program.chance = chance
            rows = [turns(model, draft, program, random) for _ in range(arguments.rounds)]
            plain, drafted, accepted = (statistics.median(column) for column in zip(*rows, strict=True))
            ratio = statistics.median(row[1] / row[0] for row in rows)
            print(
                f"| {chance:.0%} | {plain:.1f} | {drafted:.1f} | **{ratio:.2f}** | {accepted:.0%} |",
                flush=True,
            )


def turns(
    model: chaski.LLM, draft: DraftModel, program: ChanceProgram, random: np.random.Generator
) -> tuple[float, float, float]:
    """Tokens per second without and with the draft, and the share of accepted tokens."""
    text = random.integers(model.vocab_size, size=PROMPT + ANSWER).tolist()
    prompt, answer = text[:PROMPT], text[PROMPT:]
    program.text = text
    decode(model, prompt, answer[:4], 1, draft)  # so that neither side computes the prompt
    plain = decode(model, prompt, answer, 0)
    drafted = decode(model, prompt, answer, MAX_PROPOSED, draft)
    return plain.rate, drafted.rate, drafted.accepted


if __name__ == "__main__":
    main()
