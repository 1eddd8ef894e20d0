"""What guessing tokens from the prompt brings: `python -m benchmarks.speculation MODEL`.

An edit is replayed: the prompt holds a text, and the answer repeats it with changes, so that a given share of
the answer stands in the prompt. The model is computed as for any answer; only what its logits would choose is
replaced by the edit, because random weights repeat nothing. The same answer is made with and without guesses,
in turns. An overlap of 0 is an answer in which nothing is repeated: guessing must not cost anything there.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import chaski
from chaski.runner.generation import Generation, Request
from chaski.runner.sequence import Sequence
from chaski.sample import Sampled, SamplingOptions

PROMPT, ANSWER = 400, 160
# An edit changes a passage of about so many tokens, then goes on with the text.
PASSAGE = 12


class Script:
    """Stands for a sampler: it chooses the tokens of a text, whatever the logits are."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = iter(tokens)

    def sample(self, logits: np.ndarray) -> Sampled:
        return Sampled(next(self._tokens))

    def accept(self, token: int) -> None:
        """It knows already."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overlap", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.9])
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    with chaski.load(arguments.model, threads=arguments.threads, context=1024, prompt_cache=True) as model:
        print(
            "| overlap | plain, tok/s | with guesses, tok/s | ratio | guessed right |\n|--:|--:|--:|--:|--:|"
        )
        for overlap in arguments.overlap:
            rows = []
            for _ in range(arguments.rounds):
                prompt = random.integers(model.vocab_size, size=PROMPT).tolist()
                answer = edited(prompt, overlap, random, model.vocab_size)
                decode(model, prompt, answer[:1], 0)
                rows.append([decode(model, prompt, answer, guesses) for guesses in (0, 15)])
            plain, guessed = (statistics.median(row[side][0] for row in rows) for side in (0, 1))
            ratio = statistics.median(row[1][0] / row[0][0] for row in rows)
            right = statistics.median(row[1][1] for row in rows)
            print(
                f"| {overlap:.0%} | {plain:.1f} | {guessed:.1f} | **{ratio:.2f}** | {right:.0%} |", flush=True
            )


def edited(text: list[int], overlap: float, random: np.random.Generator, vocab_size: int) -> list[int]:
    """Passages of the text, and new ones between them."""
    answer: list[int] = []
    place = 0
    while len(answer) < ANSWER:
        kept = int(random.poisson(PASSAGE * overlap / max(1 - overlap, 0.01))) if overlap else 0
        answer += text[place : place + kept]
        new = int(random.poisson(PASSAGE)) + 1
        answer += random.integers(vocab_size, size=new).tolist()
        place = (place + kept + new) % (len(text) // 2)
    return answer[:ANSWER]


def decode(model: chaski.LLM, prompt: list[int], answer: list[int], guesses: int) -> tuple[float, float]:
    """Tokens per second of the answer, and the share of guesses that came true."""
    sequence = Generation(
        Request(
            prompt=prompt,
            limit=len(prompt) + len(answer),
            context=model.context,
            sampling=SamplingOptions(temperature=0),
            max_guesses=guesses,
        )
    )
    sequence._sampler = Script(answer)  # type: ignore[assignment]
    started = time.perf_counter()
    done = finished(model, sequence)
    seconds = time.perf_counter() - started
    assert sequence.tokens == prompt + answer
    return len(answer) / seconds, done.guessed_right_tokens / max(done.guessed_tokens, 1)


def finished(model: chaski.LLM, sequence: Sequence) -> chaski.Done:
    model.engine.submit(sequence)
    model.engine.wait(sequence)
    done = sequence.events.popleft()
    assert isinstance(done, chaski.Done)
    return done


if __name__ == "__main__":
    main()
