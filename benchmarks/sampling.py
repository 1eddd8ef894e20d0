"""Measure the cost of choosing tokens: `python -m benchmarks.sampling MODEL`.

Answers are decoded greedily and with sampling, one alone and several at a time. Next to the speed, the table
shows how long the machine waits for Python from the end of one batch to the start of the next; most of this
time goes to choosing tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

import chaski
from chaski.ml.plan import Input
from chaski.model.program import Run
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.request import GenerationRequest
from chaski.sample import SamplingOptions

KINDS = {
    "greedy": SamplingOptions(temperature=0),
    "top-k 40, top-p 0.9": SamplingOptions(seed=1),
    "the same, repeat penalty 1.1": SamplingOptions(seed=1, repeat_penalty=1.1),
}
PROMPT = 16


class Clock:
    """Measures the time between the end of a batch and the start of the next one."""

    def __init__(self, model: chaski.LLM) -> None:
        self.pauses: list[float] = []
        self._ended = 0.0
        program = model.engine._program
        self._wait, self._launch = program.wait, program.launch
        program.wait = self._waiting  # type: ignore[method-assign]
        program.launch = self._launching  # type: ignore[method-assign]

    def _waiting(self, most: int = 0) -> None:
        self._wait(most)
        self._ended = time.perf_counter()

    def _launching(
        self,
        values: Mapping[str, Input],
        num_top_logits: Sequence[int] = (),
        chances: Sequence[Sequence[int]] = (),
    ) -> Run:
        run = self._launch(values, num_top_logits, chances)
        self.pauses.append(time.perf_counter() - self._ended)
        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    most = max(arguments.sequences)
    context = PROMPT + arguments.generate + 1
    with chaski.load(
        arguments.model, threads=arguments.threads, context=context, parallel=most, prompt_cache=False
    ) as model:
        clock = Clock(model)
        print(f"{model.vocab_size} tokens\n")
        print("| sequences | tokens | tok/s | pause, ms a batch |\n|--:|---|--:|--:|")
        for count in arguments.sequences:
            for kind, options in KINDS.items():
                rows = [
                    decode(model, clock, count, arguments.generate, options) for _ in range(arguments.rounds)
                ]
                rate, pause = (statistics.median(column) for column in zip(*rows, strict=True))
                print(f"| {count} | {kind} | {rate:.1f} | {pause * 1e3:.3f} |", flush=True)


def decode(
    model: chaski.LLM, clock: Clock, count: int, length: int, options: SamplingOptions
) -> tuple[float, float]:
    """Return the tokens per second of all sequences, and the median pause in seconds."""
    prompts = np.random.default_rng(1).integers(model.vocab_size, size=(count, PROMPT)).tolist()
    sequences = [
        Generation(GenerationRequest(prompt=prompt, limit=PROMPT + length, sampling=options))
        for prompt in prompts
    ]
    for sequence in sequences:
        model.engine.submit(sequence)
    # The first tokens, with the prompts, do not count.
    model.engine.wait_until(lambda: all(len(one.tokens) > PROMPT for one in sequences))
    clock.pauses.clear()
    started, before = time.perf_counter(), sum(len(one.tokens) for one in sequences)
    for sequence in sequences:
        model.engine.wait(sequence)
    seconds = time.perf_counter() - started
    return (sum(len(one.tokens) for one in sequences) - before) / seconds, statistics.median(clock.pauses)


if __name__ == "__main__":
    main()
