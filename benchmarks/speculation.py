"""Measure n-gram speculation: `python -m benchmarks.speculation MODEL`.

It replays an edit: the prompt contains a text, and the answer repeats it with changes, so that a given share
of the answer is in the prompt. The model computes as for any answer; only the chosen tokens are replaced by
the edit, because random weights repeat nothing. The same answer is made with and without speculation, in
turns. With an overlap of 0 the answer repeats nothing, and speculation must not cost anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

import numpy as np

import chaski
from chaski.chat.options import AnswerOptions
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.speculation.speculator import Draft
from chaski.sample import Sampled, SamplingOptions

# An edit changes a passage of about this many tokens, then continues with the text.
PASSAGE = 12
MAX_PROPOSED = AnswerOptions().draft_num_predict


@dataclass(frozen=True, slots=True)
class Answer:
    """The speed of an answer, and the share of accepted proposals."""

    rate: float
    accepted: float


class Script:
    """Replaces a sampler: chooses the tokens of a text, whatever the logits."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = iter(tokens)

    def num_top_logits(self, most: int) -> int:
        return min(most, 1)

    def sample(self, *logits: object) -> Sampled:
        return Sampled(next(self._tokens))

    def accept(self, token: int) -> None:
        """Do nothing, since the text is fixed."""


def main() -> None:
    arguments = _arguments()
    context = arguments.prompt + arguments.generate + 64
    with chaski.load(arguments.model, threads=arguments.threads, context=context, prompt_cache=True) as model:
        measured = {
            overlap: measure(model, overlap, arguments.prompt, arguments.generate, arguments.repeat)
            for overlap in arguments.overlap
        }
    print(as_json(measured[arguments.overlap[0]]) if arguments.json else _table(measured))


def measure(
    model: chaski.LLM, overlap: float, prompt_size: int, size: int, repeat: int
) -> list[tuple[Answer, Answer]]:
    """Measure each answer without and with speculation."""
    random = np.random.default_rng(1)
    pairs = []
    for _ in range(repeat):
        prompt = random.integers(model.vocab_size, size=prompt_size).tolist()
        answer = edited(prompt, size, overlap, random, model.vocab_size)
        decode(model, prompt, answer[:1], 0)
        pairs.append((decode(model, prompt, answer, 0), decode(model, prompt, answer, MAX_PROPOSED)))
    return pairs


def edited(
    text: list[int], size: int, overlap: float, random: np.random.Generator, vocab_size: int
) -> list[int]:
    """Return this many tokens: passages of the text with new passages between them."""
    answer: list[int] = []
    place = 0
    while len(answer) < size:
        kept = int(random.poisson(PASSAGE * overlap / max(1 - overlap, 0.01))) if overlap else 0
        answer += text[place : place + kept]
        new = int(random.poisson(PASSAGE)) + 1
        answer += random.integers(vocab_size, size=new).tolist()
        place = (place + kept + new) % (len(text) // 2)
    return answer[:size]


def decode(
    model: chaski.LLM,
    prompt: list[int],
    answer: list[int],
    max_proposed: int,
    draft: Draft | None = None,
) -> Answer:
    """Make the answer from a prompt in the cache."""
    sequence = Generation(
        GenerationRequest(
            prompt=prompt,
            limit=len(prompt) + len(answer),
            context=model.context,
            sampling=SamplingOptions(temperature=0),
            max_proposed=max_proposed,
            draft=draft,
        )
    )
    sequence._sampler = Script(answer)  # type: ignore[assignment]
    started = time.perf_counter()
    done = finished(model, sequence)
    seconds = time.perf_counter() - started
    assert sequence.tokens == prompt + answer
    return Answer(len(answer) / seconds, done.accepted_tokens / max(done.proposed_tokens, 1))


def finished(model: chaski.LLM, sequence: Sequence) -> chaski.Done:
    model.engine.submit(sequence)
    model.engine.wait(sequence)
    done = sequence.events.popleft()
    assert isinstance(done, chaski.Done)
    return done


def _table(measured: dict[float, list[tuple[Answer, Answer]]]) -> str:
    lines = [
        "| overlap | plain, tok/s | speculative, tok/s | ratio | accepted |",
        "|--:|--:|--:|--:|--:|",
    ]
    for overlap, pairs in measured.items():
        plain, speculative = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
        ratio = statistics.median(speculative.rate / plain.rate for plain, speculative in pairs)
        accepted = statistics.median(speculative.accepted for _, speculative in pairs)
        lines.append(
            f"| {overlap:.0%} | {plain:.1f} | {speculative:.1f} | **{ratio:.2f}** | {accepted:.0%} |"
        )
    return "\n".join(lines)


def as_json(pairs: list[tuple[Answer, Answer]]) -> str:
    """Return the median rates with keys of `chaski bench --json`; the rival runs without speculation."""
    plain, speculative = ([statistics.median(pair[side].rate for pair in pairs)] for side in (0, 1))
    rate = "decode_tokens_per_second"
    return json.dumps({rate: speculative, "rival": {rate: plain}})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", type=int, default=400, help="tokens of the text")
    parser.add_argument("--generate", type=int, default=160, help="tokens of the edit")
    parser.add_argument("--repeat", type=int, default=3, help="edits for each overlap")
    parser.add_argument("--overlap", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.9])
    parser.add_argument("--json", action="store_true", help="print one JSON object, of the first overlap")
    return parser.parse_args()


if __name__ == "__main__":
    main()
