"""Measure the wait of requests for each other, and the cost of a next turn: `python -m benchmarks.latency`.

It answers three questions about the runner, with random tokens:

* If a short request arrives during a long prompt, after how many chunks is its first token ready?
* If a stream runs during a long prompt, what is the longest pause between two of its tokens?
* If a conversation continues, how much is computed, and how long does the first token take, compared
  with the same conversation from an empty cache?
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from dataclasses import dataclass

import numpy as np

import chaski

SHORT, TURN = 16, 24


@dataclass(frozen=True, slots=True)
class Turn:
    """The first token of an answer: seconds until it is ready, and the number of computed prompt tokens."""

    seconds: float
    evaluated: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--length", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--num-batch", type=int, default=512)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    with chaski.load(
        arguments.model,
        threads=arguments.threads,
        context=arguments.length + 256,
        parallel=2,
        num_batch=arguments.num_batch,
        prompt_cache="memory",  # without files of earlier runs
    ) as model:
        follow_ups, waits, pauses = [], [], []
        for _ in range(arguments.repeat):
            prompt = random.integers(model.vocab_size, size=arguments.length).tolist()
            cold, warm = conversation(model, prompt, random.integers(model.vocab_size, size=TURN).tolist())
            follow_ups.append(warm.seconds / cold.seconds)
            print(
                f"{arguments.length} tokens from nothing: {cold.seconds:.2f} s, {cold.evaluated} computed; "
                f"{TURN} more: {warm.seconds:.3f} s, {warm.evaluated} computed"
            )
            chunk = cold.seconds * arguments.num_batch / arguments.length
            waits.append(short_request(model, random) / chunk)
            pauses.append(longest_pause(model, random) / chunk)
    print(f"follow-up turn, share of a cold prompt   {100 * statistics.median(follow_ups):.1f} %")
    print(f"short request, chunks to its first token {statistics.median(waits):.2f}")
    print(f"running stream, chunks of longest pause  {statistics.median(pauses):.2f}")


def first_token(model: chaski.LLM, prompt: list[int]) -> Turn:
    started = time.perf_counter()
    done = model.generate(prompt, num_predict=1, temperature=0).done
    return Turn(time.perf_counter() - started, done.evaluated_tokens)


def conversation(model: chaski.LLM, prompt: list[int], turn: list[int]) -> tuple[Turn, Turn]:
    """Measure a new prompt, and the same prompt with its answer and another turn."""
    cold = first_token(model, prompt)
    answer = model.generate(prompt, num_predict=8, temperature=0, stop=[])
    return cold, first_token(model, [*prompt, *answer.token_ids, *turn])


def short_request(model: chaski.LLM, random: np.random.Generator) -> float:
    """Return the seconds to the first token of a short request that arrives during a long prompt."""
    long = start_long(model, random)
    seconds = first_token(model, random.integers(model.vocab_size, size=SHORT).tolist()).seconds
    long.join()
    return seconds


def longest_pause(model: chaski.LLM, random: np.random.Generator) -> float:
    """Return the longest pause in seconds between two tokens of a running stream during a long prompt."""
    stream = model.stream(random.integers(model.vocab_size, size=SHORT).tolist(), num_predict=200, stop=[])
    next(stream)
    long = start_long(model, random)
    last, pause = time.perf_counter(), 0.0
    while long.is_alive():
        next(stream)
        now = time.perf_counter()
        last, pause = now, max(pause, now - last)
    stream.close()
    return pause


def start_long(model: chaski.LLM, random: np.random.Generator) -> threading.Thread:
    """Start a long prompt in a separate thread, and wait until its second chunk."""
    prompt = random.integers(model.vocab_size, size=model.context - 256).tolist()
    thread = threading.Thread(target=first_token, args=(model, prompt))
    thread.start()
    time.sleep(2.0)
    return thread


if __name__ == "__main__":
    main()
