"""Kill nodes without Ray and their head during streams, again and again, and compare all answers.

    python -m tests.cluster.kill_shards --nodes 4 --split rows --minutes 5

Each round requests several answers at once. Meanwhile random `chaski shard` processes are killed and started
again, or hang for a while, and so does the head. Every stream must equal that of a model alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import chaski
from chaski.chat.events import Text
from chaski.cluster.nodes_model import NodesModel, nodes_model_opener
from tests.cluster.shard_processes import ShardProcesses, shard_processes
from tests.tiny_llama import write_tiny_llama

OPTIONS: dict[str, Any] = {"num_predict": 100, "temperature": 1.0, "ignore_eos": True}
Answer = tuple[str, tuple[int, ...]]
SIZES: dict[str, Any] = {"context": 512, "parallel": 16, "threads": 1}


def main() -> None:
    """Run all rounds; end with an error at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--split", default="layers")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills, on average")
    parser.add_argument("--minutes", type=float, default=5.0, help="no round begins after so many")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all started processes end in any case
    os.environ["CHASKI_PREFIX_CACHE"] = "memory"  # block files would be stored among the user's
    requests = [(f"story {number}", {**OPTIONS, "seed": number}) for number in range(arguments.streams)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        path = write_tiny_llama(folder / "tiny.gguf", layers=4, llama__context_length=2048)
        with chaski.load(path, **SIZES) as alone:
            answers = [alone.generate(prompt, **options) for prompt, options in requests]
        nodes = stack.enter_context(shard_processes(arguments.nodes, folder))
        open_model = nodes_model_opener(nodes.environment(arguments.split))
        model = open_model(path, progress=lambda share: None, **SIZES)
        stack.callback(model.close)
        model.tokenize("loads it")
        killer = Killer(nodes, model, arguments)
        run_rounds(model, requests, [(each.text, each.token_ids) for each in answers], killer, arguments)


class Killer:
    """Kills a random process now and then, also while the model is loaded again, and counts the kills."""

    def __init__(self, nodes: ShardProcesses, model: NodesModel, arguments: Any) -> None:
        self._nodes, self._model, self._every = nodes, model, arguments.every
        self._chance = random.Random(arguments.seed)
        self._is_over = threading.Event()
        self.kills = dict.fromkeys(["node", "head", "hang"], 0)
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(self._chance.expovariate(1 / self._every)):
            (what,) = self._chance.choices(list(self.kills), [3.0, 3.0, 1.0])
            node = self._chance.randrange(len(self._nodes.addresses))
            self.kills[what] += 1
            if what == "node":
                self._nodes.kill(node)
                self._is_over.wait(self._chance.choice([0.0, 2.0]))
                self._nodes.start(node)
            elif what == "hang":
                self._nodes.send(node, signal.SIGSTOP)
                self._is_over.wait(self._chance.choice([1.0, 20.0]))
                self._nodes.send(node, signal.SIGCONT)
            elif (worker := self._model._replica._worker) is not None and worker.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)


def run_rounds(
    model: NodesModel,
    requests: list[tuple[str, dict[str, Any]]],
    expected: list[Answer],
    killer: Killer,
    arguments: Any,
) -> None:
    """Ask for all answers again and again during kills. Raises AssertionError at a difference."""
    longest_pause = 0.0

    async def answer(prompt: str, options: dict[str, Any]) -> Answer:
        nonlocal longest_pause
        text, heard_at = "", time.monotonic()
        ids: list[int] = []
        async for event in model.asynchronous().stream(prompt, **options):
            longest_pause = max(longest_pause, time.monotonic() - heard_at)
            heard_at = time.monotonic()
            if isinstance(event, Text):
                text += event.text
                ids += event.token_ids
        return text, tuple(ids)

    async def all_answers() -> list[Answer | BaseException]:
        asked = (answer(prompt, options) for prompt, options in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    started = time.monotonic()
    with killer:
        for number in range(1, arguments.rounds + 1):
            found = asyncio.run(all_answers())
            wrong = [each for each, right in zip(found, expected, strict=True) if each != right]
            killed = ", ".join(f"{count} of {what}" for what, count in killer.kills.items())
            print(
                f"round {number}: {len(found) - len(wrong)} of {len(found)} streams as alone; "
                f"kills: {killed}; longest pause {longest_pause:.1f} s, "
                f"{time.monotonic() - started:.0f} s in all",
                flush=True,
            )
            assert not wrong, f"round {number} has other answers: {str(wrong[0])[:500]}"
            if time.monotonic() - started > arguments.minutes * 60:
                break


if __name__ == "__main__":
    main()
