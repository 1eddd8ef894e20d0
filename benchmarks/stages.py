"""Prompts over nodes with some layers each: batches that follow each other, beside one batch at a time.

    python -m benchmarks.stages --nodes 2 --prompts 512 2048

The nodes are processes of this machine, with a thread each, so that there must be a core for every node. The
model has random weights. In each turn the same prompt is computed by all nodes with batches that follow each
other, by all nodes with one batch after the other, and by one process with one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest.mock import patch

import chaski
from benchmarks.make_models import write
from benchmarks.shapes.llama import Llama
from benchmarks.shapes.shape import Vocabulary
from chaski.ml.sharded.backend import ShardedBackend

_SHAPE = Llama(12, 2048, 32, 8, 64, 8192, 5e5, 8192, Vocabulary("llama-bpe", 4096, 256, 3000))
_KEY = b"nodes of a benchmark know this key."


class _OneStage(ShardedBackend):
    """The same nodes, of which nobody knows that they can compute several batches at the same time."""

    stages = 1


@contextmanager
def _running_nodes(folder: Path, count: int) -> Iterator[None]:
    """So many nodes, which models that are loaded meanwhile are computed by."""
    key = folder / "nodes.key"
    key.write_bytes(_KEY)
    key.chmod(0o600)
    command = [sys.executable, "-m", "chaski", "shard", "--listen", "127.0.0.1:0", "--key", str(key)]
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            node = subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, text=True)
            stack.callback(node.wait)
            stack.callback(node.kill)
            assert node.stderr is not None
            addresses.append(node.stderr.readline().split()[-1])
        given = {"CHASKI_NODES": ",".join(addresses), "CHASKI_NODES_KEY": str(key), "CHASKI_SPLIT": "layers"}
        with patch.dict(os.environ, given):
            yield


def _seconds(model: chaski.LLM, prompt: Sequence[int]) -> float:
    started = time.perf_counter()
    model.generate(list(prompt), num_predict=1, temperature=0)
    return time.perf_counter() - started


def main() -> None:
    """Print a table: medians of tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--type", default="Q4_K_M", help="of the matrices")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    options = {"context": max(arguments.prompts) + 8, "prompt_cache": False}
    with TemporaryDirectory() as name, ExitStack() as stack:
        path = Path(name) / "random.gguf"
        write(path, _SHAPE, arguments.type, "random")
        models = {}
        with _running_nodes(Path(name), arguments.nodes):
            models["following"] = stack.enter_context(chaski.load(path, **options))
            with patch.object(ShardedBackend, "stages", 1):
                models["one at a time"] = stack.enter_context(chaski.load(path, **options))
            backend = models["one at a time"].engine._program._backend
            backend.__class__ = _OneStage
            models["one thread alone"] = stack.enter_context(
                chaski.load(path, backend="cpu", threads=1, **options)
            )
            print(f"| tokens | {' | '.join(models)} | times one at a time | times alone |")
            print("|--:|--:|--:|--:|--:|--:|")
            for count in arguments.prompts:
                prompt = [5 + (7 * place) % 3000 for place in range(count)]
                taken: dict[str, list[float]] = {kind: [] for kind in models}
                for turn in range(arguments.repeat):
                    for kind, model in models.items():
                        taken[kind].append(_seconds(model, [turn, *prompt[1:]]))
                rates = {kind: count / median(seconds) for kind, seconds in taken.items()}
                first, second, third = rates.values()
                shown = [f"{rate:.1f}" for rate in rates.values()]
                print(
                    f"| {count} | {' | '.join(shown)} | {first / second:.2f} | {first / third:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
