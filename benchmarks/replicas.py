"""Compare random routing with routing by prefix on real replicas: `python -m benchmarks.replicas`.

    python -m benchmarks.replicas                         four replicas of one thread, eight users
    python -m benchmarks.replicas --users 16 --sessions 64

The conversations are those of `benchmarks/simulated/replicas.py`, on a small scale: a number of users talk at
a time, and begin the next conversation when one has ended. A prompt contains the conversation so far,
including answers, as in a chat. Replicas are processes of this machine that share its cores, so the
comparison shows their total work. The model has random weights. Each policy runs in turn, with empty
replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.make_models import write
from benchmarks.shapes.llama import Llama
from benchmarks.shapes.shape import Vocabulary
from benchmarks.simulated.replicas import Conversations, Turn
from chaski.chat.events import Done, Text
from chaski.cluster.links import Listener, new_key
from chaski.cluster.members import Member
from chaski.cluster.model import ClusterModel
from chaski.cluster.replica_set import ReplicaSet
from chaski.cluster.router import Router
from chaski.cluster.routing import Candidate
from chaski.cluster.serving import Connection
from chaski.runner.channels.worker.client import Worker

_SHAPE = Llama(8, 768, 12, 4, 64, 2048, 10000.0, 8192, Vocabulary("llama-bpe", 4096, 256, 3000))
_COLUMNS = ("run", "policy", "answers a second", "first token, s", "99 %", "cached", "tokens computed")


class _RandomRouter(Router):
    """Chooses replicas at random."""

    def choose(self, blocks: Sequence[int], prompt_tokens: int, without: Any = ()) -> Candidate:
        chosen = random.choice(self.replicas)
        return Candidate(chosen, 0, self.load(chosen), self.speed(chosen))


_ROUTERS: dict[str, type[Router]] = {"random": _RandomRouter, "by prefix": Router}


class _Replicas:
    """Several processes with the model, and their addresses."""

    def __init__(self, number: int, path: Path, places: int) -> None:
        self.key = new_key()
        self._workers = [Worker(path, threads=1, parallel=places, context=6144) for _ in range(number)]
        for worker in self._workers:
            worker.info()
        self._listeners = [Listener("127.0.0.1", self.key, self._taker(worker)) for worker in self._workers]
        self._members = [
            Member(name=f"replica {number}", address=each.address, node="here", pid=number, places=places)
            for number, each in enumerate(self._listeners)
        ]

    def list(self) -> Sequence[Member]:
        return self._members

    def replace(self, generation: int) -> None:
        """Do nothing, since the same replicas answer all conversations."""

    def scale(self, number: int) -> None:
        pass

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for worker in self._workers:
            worker.close()

    @staticmethod
    def _taker(worker: Worker) -> Any:
        def take(end: socket.socket) -> None:
            Connection(end, worker).serve()

        return take


@dataclass(slots=True)
class _Found:
    first: list[float] = field(default_factory=list)
    cached: int = 0
    computed: int = 0
    seconds: float = 0.0


async def _talk(
    model: ClusterModel, sessions: list[list[Turn]], users: int, think: float, system_tokens: int
) -> _Found:
    found, waiting = _Found(), list(reversed(sessions))

    async def user() -> None:
        while waiting:
            session = waiting.pop()
            text, tokens = _system(session[0], system_tokens), system_tokens
            for number, turn in enumerate(session):
                await asyncio.sleep(turn.think * think)
                text += _letters(f"{turn.session} {number}", turn.prompt_tokens - tokens)
                text += await _ask(model, text, turn.answer_tokens, found)
                tokens = turn.prompt_tokens + turn.answer_tokens

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    found.seconds = time.perf_counter() - started
    return found


async def _ask(model: ClusterModel, prompt: str, answer_tokens: int, found: _Found) -> str:
    started, is_first, answer = time.perf_counter(), True, ""
    options: dict[str, Any] = {"num_predict": answer_tokens, "ignore_eos": True, "seed": 1}
    async for event in model.asynchronous().stream(prompt, **options):
        if isinstance(event, Text | Done) and is_first:
            found.first.append(time.perf_counter() - started)
            is_first = False
        if isinstance(event, Text):
            answer += event.text
        if isinstance(event, Done):
            found.cached += event.cached_tokens
            found.computed += event.prompt_tokens - event.cached_tokens
    return answer


def _system(turn: Turn, tokens: int) -> str:
    """Return the system prompt of a conversation."""
    return _letters(f"system {turn.blocks[0]}", tokens)


def _letters(name: str, count: int) -> str:
    """Return this many letters and digits, about one per token; the same name gives the same text."""
    return "".join(random.Random(name).choices(string.ascii_letters + string.digits, k=count))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--systems", type=int, default=20, help="different first prompts")
    parser.add_argument("--system-tokens", type=int, default=1500)
    parser.add_argument("--question-tokens", type=int, default=300)
    parser.add_argument("--answer-tokens", type=int, default=12)
    parser.add_argument("--think", type=float, default=0.0, help="of the 20 s between two turns, this share")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each policy")
    arguments = parser.parse_args()
    os.environ["CHASKI_PREFIX_CACHE"] = "memory"  # all replicas would share files of blocks
    trace = Conversations(
        arguments.sessions,
        1.0,
        num_systems=arguments.systems,
        system_tokens=arguments.system_tokens,
        turns=arguments.turns,
        question_tokens=arguments.question_tokens,
        answer_tokens=arguments.answer_tokens,
    )
    sessions = [turns for _, turns in trace.sessions()]
    print(f"| {' | '.join(_COLUMNS)} |\n|--:|---|--:|--:|--:|--:|--:|", flush=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write(path, _SHAPE, "Q8_0", "random")
        for number in range(arguments.rounds):
            for policy, router in _ROUTERS.items():
                model = ClusterModel(ReplicaSet(_Replicas(arguments.replicas, path, 8), router=router(256)))
                while model.num_replicas < arguments.replicas:
                    time.sleep(0.1)
                found = asyncio.run(
                    _talk(model, sessions, arguments.users, arguments.think, arguments.system_tokens)
                )
                model.close()
                first = np.array(found.first)
                cached = found.cached / (found.cached + found.computed)
                print(
                    f"| {number + 1} | {policy} | {len(first) / found.seconds:.2f} | {first.mean():.2f} "
                    f"| {np.quantile(first, 0.99):.2f} | {cached:.0%} | {found.computed} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
