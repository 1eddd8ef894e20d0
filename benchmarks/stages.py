"""Measure nodes with several layers each, with a pipeline of batches and one batch at a time.

    python -m benchmarks.stages --nodes 2 --prompts 512 2048 --sequences 8 16 32

The nodes are processes of this machine with one thread each, so every node needs a core. The model has random
weights. In each turn, the same prompt is computed by all nodes with a pipeline of batches, by all nodes with
one batch at a time, and by one process with one thread. The same is done with the answers of several
sequences at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import chaski
from benchmarks.make_models import write
from benchmarks.shapes.llama import Llama
from benchmarks.shapes.shape import Vocabulary
from benchmarks.shards import models_on, running_nodes, written_key
from chaski.ml.sharded.backend import ShardedBackend

_SHAPE = Llama(12, 2048, 32, 8, 64, 8192, 5e5, 8192, Vocabulary("llama-bpe", 4096, 256, 3000))
_ANSWER = 32


class _OneStage(ShardedBackend):
    """The same nodes without the pipeline of batches."""

    stages = 1


def _reading(model: chaski.LLM, count: int, turn: int) -> float:
    """Return prompt tokens per second."""
    prompt = [turn, *(5 + (7 * place) % 3000 for place in range(1, count))]
    started = time.perf_counter()
    model.generate(prompt, num_predict=1, temperature=0)
    return count / (time.perf_counter() - started)


def _decoding(model: chaski.LLM, count: int, turn: int) -> float:
    """Return the tokens per second of this many sequences together, after prompts of one token."""
    prompts = [[5 + turn + 7 * number] for number in range(count)]
    started = time.perf_counter()
    model.generate_many(prompts, num_predict=_ANSWER, temperature=0, ignore_eos=True)
    return count * _ANSWER / (time.perf_counter() - started)


def main() -> None:
    """Print two tables with medians of tokens per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--type", default="Q4_K_M", help="type of the matrices")
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--sequences", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    longest, most = max([64, *arguments.prompts]), max([1, *arguments.sequences])
    options: dict[str, Any] = {"context": longest + 8, "parallel": most, "prompt_cache": False}
    with TemporaryDirectory() as name, ExitStack() as stack:
        path = Path(name) / "random.gguf"
        write(path, _SHAPE, arguments.type, "random")
        models = {}
        key = written_key(Path(name))
        with running_nodes(key, arguments.nodes) as addresses, models_on(addresses, key, "layers"):
            models["following"] = stack.enter_context(chaski.load(path, **options))
            with patch.object(ShardedBackend, "stages", 1):
                models["one at a time"] = stack.enter_context(chaski.load(path, **options))
            backend = models["one at a time"].engine._program._backend
            backend.__class__ = _OneStage
            models["one thread alone"] = stack.enter_context(
                chaski.load(path, backend="cpu", threads=1, **options)
            )
            for kind, counts, rate in (
                ("tokens", arguments.prompts, _reading),
                ("sequences", arguments.sequences, _decoding),
            ):
                print(f"| {kind} | {' | '.join(models)} | times one at a time | times alone |")
                print("|--:|--:|--:|--:|--:|--:|")
                for count in counts:
                    print(_row(models, count, rate, arguments.repeat), flush=True)
                print()


def _row(
    models: Mapping[str, chaski.LLM],
    count: int,
    rate: Callable[[chaski.LLM, int, int], float],
    repeat: int,
) -> str:
    turns = [[rate(model, count, turn) for model in models.values()] for turn in range(repeat)]
    first, second, third = (median(rates) for rates in zip(*turns, strict=True))
    shown = f"{first:.1f} | {second:.1f} | {third:.1f}"
    return f"| {count} | {shown} | {first / second:.2f} | {first / third:.2f} |"


if __name__ == "__main__":
    main()
