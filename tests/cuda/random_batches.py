"""Random batches on a GPU and on the CPU, compared bit by bit, for every type of quantized weights.

A batch has tokens of up to six sequences, some of which have just begun. Random prompts share beginnings,
contexts fill, and answers have random lengths. The default tests run a few batches; `python -m
tests.cuda.random_batches 1000` runs 1000 of each type, on the GPU of this machine if CHASKI_TEST_GPU is set,
else on the emulated device. With `--places`, the layers are at random on up to three emulated GPUs and on the
processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import chaski
from chaski.formats.gguf import open_gguf
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.sharded.plan import ShardedPlan
from tests.cuda.devices import BACKENDS
from tests.cuda.emulated import gpu

__all__ = ["FILES", "Comparison"]

DATA = Path(__file__).parents[1] / "data" / "llama" / "quantized"
# One model in each of llama.cpp's types.
FILES = {path.stem: path for path in sorted(DATA.glob("*.gguf"))}
CONTEXT, TOKENS = 64, 60


class Comparison:
    """A model on the CPU and on GPUs. `batches` counts the batches that the GPUs have computed.

    `in_places`: the layers are on random devices, never all on one GPU.
    """

    def __init__(self, path: Path, backend: str, seed: int = 0, in_places: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        self.batches = 0
        self._path = path
        self._backend = backend
        self._in_places = in_places
        self._stems = [self._ids(CONTEXT) for _ in range(3)]

    def run(self, batches: int) -> list[str]:
        """Compare at least this many batches; return the differences."""
        different = []
        plans: Any = ShardedPlan if self._in_places else CUDAPlan
        launch = plans.launch

        def counted(plan: Any, *arguments: Any) -> Any:
            self.batches += 1
            return launch(plan, *arguments)

        with patch.object(plans, "launch", counted), patch.object(gpu, "SIZES", [8 << 30] * 3):
            while self.batches < batches:
                few, many = self._random.integers(6, 24), self._random.integers(24, 300)
                num_batch = int(few if self._random.random() < 0.7 else many)
                different += self._round(num_batch, self._path, batches)
        return different

    def _round(self, num_batch: int, path: Path, batches: int) -> list[str]:
        """Run concurrent requests until a few hundred batches were computed."""
        types = str(self._random.choice(("i16", "f16", "q8_0")))
        options: Any = {"context": CONTEXT, "parallel": 6, "num_batch": num_batch, "threads": 1}
        options["prompt_cache"] = "memory"  # block files would be stored among the user's
        end, different = min(batches, self.batches + 200), []
        with (
            chaski.load(path, backend="cpu", kv_type=types, **options) as expected,
            chaski.load(path, backend=self._backend, kv_type=types, **options, **self._place(path)) as found,
        ):
            while self.batches < end:
                prompts, asked = self._requests()
                answers = [
                    [(each.token_ids, each.logprobs) for each in model.generate_many(prompts, **asked)]
                    for model in (expected, found)
                ]
                assert all(ids and len(scores or ids) == len(ids) for ids, scores in answers[0])
                if answers[0] != answers[1]:
                    different.append(f"{path.stem}, {types}, num_batch {num_batch}: {prompts}, {asked}")
        return different

    def _place(self, path: Path) -> dict[str, Any]:
        """Return loading options that place layers on devices."""
        if not self._in_places:
            return {}
        with open_gguf(path) as file:
            layers = file.get("llama.block_count", int)
        shares = [float(share) for share in self._random.integers(0, 4, 3)]
        if sum(share > 0 for share in shares) < 2:
            shares = []
        whole = len(shares) > 0 and layers > 1 and self._random.random() < 0.5
        num_gpu = layers + 1 if whole else int(self._random.integers(1, layers + 1))
        return {"num_gpu": num_gpu, "tensor_split": shares or None}

    def _requests(self) -> tuple[list[list[int]], dict[str, Any]]:
        below = self._random.integers
        prompts = []
        for _ in range(int(below(1, 7))):
            stem, length = self._stems[below(3)], int(below(1, CONTEXT))
            shared = int(below(length + 1))
            prompts.append(stem[:shared] + self._ids(length - shared))
        return prompts, {
            "num_predict": int(below(1, 20)),
            "temperature": float(self._random.choice((0.0, 1.0))),
            "seed": int(below(1000)),
            "logprobs": bool(below(2)),  # without them, greedy batches are launched ahead
            "ignore_eos": True,
        }

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(3, TOKENS, count)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", action="store_true", help="layers in random places")
    parser.add_argument("--of", choices=FILES, help="only this type")
    parsed = parser.parse_args(arguments)
    failures = 0
    for name, path in FILES.items():
        if parsed.of in (None, name):
            comparison = Comparison(path, BACKENDS[-1], parsed.seed, parsed.places)
            different = comparison.run(parsed.batches)
            failures += len(different)
            print(
                f"{name}: {comparison.batches} batches on {BACKENDS[-1]}, {len(different)} differ", flush=True
            )
            print(*different, sep="\n", end="\n" if different else "")
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
