"""Measure one engine, chaski or llama.cpp, on a model that may not fit into memory.

    python benchmarks/limited_worker.py chaski MODEL --prompt 32 --generate 64 --batch 1

It prints one line of JSON with the rates of every repeat, the bytes that the process read from the disk in
the measured time, and the private memory that it took. llama.cpp runs through xllamacpp, from its mapped file
and without repacked weights, which would take memory. Prompts are random, and both engines sample tokens at a
high temperature, so that an answer does not repeat itself and with it the choice of experts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

__all__: list[str] = []

_SAMPLING = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "ignore_eos": True}
# Ordinary tokens in every vocabulary of `make_models` and `make_experts`.
_FIRST_TOKEN, _TOKENS = 260, 500


class Times(NamedTuple):
    """The seconds of one sequence until its first token, and from there to its last token."""

    prefill: float
    decode: float


Run = Callable[[Sequence[Sequence[int]], int], Sequence[Times]]
"""Continues prompts together by a number of tokens."""


def _chaski(arguments: argparse.Namespace) -> Run:
    chaski = importlib.import_module("chaski")
    model = chaski.load(
        arguments.model,
        threads=arguments.threads,
        context=_context(arguments),
        parallel=arguments.batch,
        prompt_cache=False,
    )
    model.wait_loaded()

    def run(prompts: Sequence[Sequence[int]], count: int) -> list[Times]:
        answers = model.generate_many(prompts, num_predict=count, seed=len(prompts[0]), **_SAMPLING)
        return [Times(each.done.prefill_seconds, each.done.decode_seconds) for each in answers]

    return run


def _llama_cpp(arguments: argparse.Namespace) -> Run:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(arguments.model)
    params.n_ctx, params.n_parallel = _context(arguments) * arguments.batch, arguments.batch
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    params.no_extra_bufts = True
    params.warmup = params.fit_params = False
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(arguments.batch)

    def run(prompts: Sequence[Sequence[int]], count: int) -> list[Times]:
        def one(prompt: Sequence[int]) -> Times:
            asked = {"prompt": list(prompt), "n_predict": count, "cache_prompt": False, "min_p": 0.0}
            answer = server.handle_completions({**asked, **_SAMPLING})
            if "timings" not in answer:
                raise SystemExit(f"llama.cpp answers {answer!s:.300}")
            timings = answer["timings"]
            return Times(timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000)

        return list(pool.map(one, prompts))

    return run


ENGINES = {"chaski": _chaski, "llama.cpp": _llama_cpp}
_MODULES = {"chaski": "chaski", "llama.cpp": "xllamacpp"}


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    importlib.import_module(_MODULES[arguments.engine])
    without = _private_bytes()
    run = ENGINES[arguments.engine](arguments)
    generator = random.Random(arguments.prompt)
    prefill, decode, read, seconds = [], [], [], []
    for _ in range(arguments.repeat):
        prompts = [_prompt(generator, arguments.prompt) for _ in range(arguments.batch)]
        before, started = _read_bytes(), time.perf_counter()
        times = run(prompts, arguments.generate)
        seconds.append(time.perf_counter() - started)
        read.append(_read_bytes() - before)
        prefill.append(arguments.batch * arguments.prompt / max(each.prefill for each in times))
        # The first token of an answer comes from the prompt.
        tokens = arguments.batch * (arguments.generate - 1)
        decode.append(tokens / max(each.decode for each in times) if tokens else 0.0)
    return {
        "prefill_tokens_per_second": prefill,
        "decode_tokens_per_second": decode,
        "read_bytes": read,
        "seconds": seconds,
        "memory_bytes": _private_bytes() - without,
    }


def _context(arguments: argparse.Namespace) -> int:
    length: int = arguments.prompt + arguments.generate + 1
    return -(-length // 256) * 256


def _prompt(generator: random.Random, length: int) -> list[int]:
    return [_FIRST_TOKEN + generator.randrange(_TOKENS) for _ in range(length)]


def _read_bytes() -> int:
    """Return the bytes that this process has read from disks so far, those of mapped files included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def _private_bytes() -> int:
    """Return the bytes of this process in memory, without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return 1024 * sum(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", type=Path)
    for name in ("prompt", "generate", "depth", "batch", "threads", "repeat"):
        parser.add_argument(f"--{name}", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Measure once and print the result."""
    arguments = _arguments()
    print(json.dumps(_measure(arguments)), flush=True)


if __name__ == "__main__":
    main()
