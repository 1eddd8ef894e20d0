"""Measure LoRA adapters of requests: `python -m benchmarks.adapters MODEL`.

It answers three questions, each compared with the same streams without adapters, in turns, in one process:

* If each stream has its own adapter, which share of the tokens per second remains?
* If one stream has an adapter, which share remains?
* How long does loading another adapter by name take?
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import chaski
from benchmarks.llama_server import LlamaServer, started
from chaski.chat.options import GenerateOptions
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from tests.adapters import adapted_names, random_adapter

PROMPT = 8
PAUSE = 0.3
"""Seconds between loading two adapters."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", default="F16", choices=["F32", "F16", "BF16"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each stream")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["streams", "one", "load"])
    parser.add_argument("--peer", type=Path, help="llama-server, for the streams too")
    parser.add_argument("--files", type=Path, help="folder to keep the adapters in")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        place = arguments.files or Path(folder)
        names = [f"{arguments.type.lower()}-{arguments.rank}-{n}" for n in range(arguments.streams)]
        paths = write(Path(arguments.model), place, names, arguments.rank, QuantType[arguments.type])
        with chaski.load(
            arguments.model, threads=arguments.threads, context=256, parallel=arguments.streams
        ) as model:
            model.wait_loaded()
            seconds = [load(model, name, path) for name, path in zip(names, paths, strict=True)]
            size = model.adapters()[0].num_bytes / 1e6
            later = statistics.median(seconds[1:] or seconds)
            print(f"loading the first adapter {1e3 * seconds[0]:.1f} ms, a later one {1e3 * later:.1f} ms")
            print(f"each of {size:.1f} MB, rank {arguments.rank}, {arguments.type}")
            if arguments.only in (None, "streams"):
                compare(model, names, arguments.tokens, arguments.repeat)
            if arguments.only in (None, "one"):
                compare(model, names[:1], 2 * arguments.tokens, 2 * arguments.repeat)
        if arguments.peer is not None:
            compare_peer(arguments, paths)


def write(model: Path, folder: Path, names: Sequence[str], rank: int, type: QuantType) -> list[Path]:
    """Write adapters of all seven matrices of each layer, unless they exist."""
    with open_gguf(model) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
        architecture = file.architecture
    paths = [folder / f"{name}.gguf" for name in names]
    for seed, path in enumerate(paths):
        if not path.exists():
            random_adapter(path, shapes, seed, rank, type, architecture=architecture)
    return paths


def load(model: chaski.LLM, name: str, path: Path) -> float:
    time.sleep(PAUSE)
    started = time.perf_counter()
    model.load_adapter(name, path)
    return time.perf_counter() - started


def compare(model: chaski.LLM, names: Sequence[str], tokens: int, repeat: int) -> None:
    """Compute the streams without and with their adapters, in turns."""
    none: list[str | None] = [None] * len(names)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * repeat):
        is_adapted = turn % 2 == 1
        rates[is_adapted].append(asyncio.run(rate(model, names if is_adapted else none, tokens)))
    plain, adapted = (statistics.median(rates[key]) for key in (False, True))
    share = statistics.median(b / a for a, b in zip(rates[False], rates[True], strict=True))
    print(
        f"{len(names)} streams: {plain:.1f} tokens a second without adapters, {adapted:.1f} with one each: "
        f"{100 * share:.1f} % ({', '.join(f'{b / a:.3f}' for a, b in zip(*rates.values(), strict=True))})"
    )


def compare_peer(arguments: argparse.Namespace, paths: Sequence[Path]) -> None:
    """Compute the streams on llama.cpp's server, without adapters and with one adapter each."""
    count = len(paths)
    options = ["--threads", str(arguments.threads or 2), "--parallel", str(count)]
    options += ["--ctx-size", str(256 * count), "--no-kv-unified"]
    adapters = ["--lora-init-without-apply", "--lora", ",".join(map(str, paths))]
    rates: dict[tuple[int, bool], float] = {}
    for is_adapted in (False, True):
        more = adapters if is_adapted else []
        with started(arguments.peer, arguments.model, *options, *more) as server:
            for number in (count, 1):
                fields: list[dict[str, Any]] = [{"lora": [{"id": n, "scale": 1.0}]} for n in range(number)]
                each = fields if is_adapted else [{}] * number
                measured = [peer_rate(server, each, arguments.tokens) for _ in range(arguments.repeat)]
                rates[number, is_adapted] = statistics.median(measured)
    for number in (count, 1):
        plain, adapted = rates[number, False], rates[number, True]
        share = f"{100 * adapted / plain:.1f} %"
        print(f"llama-server, {number} streams: {plain:.1f} without adapters, {adapted:.1f} with: {share}")


def peer_rate(server: LlamaServer, fields: Sequence[dict[str, Any]], tokens: int) -> float:
    """Tokens per second of all streams together, including the short prompts."""
    random = np.random.default_rng(len(fields))
    prompts = [random.integers(10_000, size=PROMPT).tolist() for _ in fields]

    def stream(number: int) -> list[float]:
        return list(server.stream(prompts[number], tokens, **fields[number]))

    with ThreadPoolExecutor(len(fields)) as pool:
        began = time.perf_counter()
        came = list(pool.map(stream, range(len(fields))))
    return sum(map(len, came)) / (max(one[-1] for one in came) - began)


async def rate(model: chaski.LLM, adapters: Sequence[str | None], tokens: int) -> float:
    """Tokens per second of all streams together, after the first token of each."""
    random = np.random.default_rng(len(adapters))
    channel = model.asynchronous()
    firsts: list[float] = []

    async def answer(adapter: str | None) -> None:
        prompt = random.integers(model.vocab_size // 2, size=PROMPT).tolist()
        options: GenerateOptions = {
            "num_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "draft_num_predict": 0,
            "adapter": adapter,
        }
        is_first = True
        async for _ in channel.stream(prompt, **options):
            if is_first:
                firsts.append(time.perf_counter())
                is_first = False

    await asyncio.gather(*(answer(adapter) for adapter in adapters))
    return len(adapters) * (tokens - 1) / (time.perf_counter() - max(firsts))


if __name__ == "__main__":
    main()
