"""Processes that share a prefix cache on disk are killed at any moment, and its files damaged meanwhile.

Whatever they left, each answer of the next ones is compared with a fresh one. The default tests run a few
rounds; `python -m tests.random_kills 5000` runs many.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

import chaski
from chaski.runner.prefix import naming, tiers
from tests.tiny_llama import write_tiny_llama

__all__ = ["Kills"]

_BLOCK, _CONTEXT = 16, 128
_LONGEST = 0.3


class Kills:
    """Rounds of one child each; all that is random comes from the seed, but for when a signal arrives."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = np.random.default_rng(seed)
        self.model = write_tiny_llama(folder / "tiny.gguf")
        stems = [[int(t) for t in self.random.integers(5, 200, 100)] for _ in range(4)]
        self.prompts = [
            stems[number % 4][: int(self.random.integers(1, 100))]
            + [int(t) for t in self.random.integers(5, 200, int(self.random.integers(1, 20)))]
            for number in range(24)
        ]
        self.answers = 0
        self.restored = 0
        self.killed = 0
        self.damaged = 0
        with patch.dict(os.environ, {"CHASKI_PREFIX_CACHE": "off"}), self._load() as fresh:
            self._fresh = [self._answer(fresh, number) for number in range(len(self.prompts))]

    def run(self, rounds: int) -> list[int]:
        """Run so many children -> the prompts that were answered otherwise than afresh."""
        wrong = []
        for _ in range(rounds):
            for number, tokens, restored in self._round():
                self.answers += 1
                self.restored += restored
                if tokens != self._fresh[number]:
                    wrong.append(number)
            self._damage()
        return wrong

    def _round(self) -> list[tuple[int, list[int], int]]:
        """Run a child until it is killed, or has answered twelve prompts -> what it said."""
        order = [int(number) for number in self.random.integers(0, len(self.prompts), 12)]
        limit = float(self.random.uniform(0, _LONGEST)) if self.random.random() < 0.8 else 60.0
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._child(order, writing)
        os.close(writing)
        text = _read(reading, limit)
        if not text.endswith(b"end\n"):
            os.kill(child, signal.SIGKILL)
            self.killed += 1
        os.waitpid(child, 0)
        lines = text.split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line != b"end"]

    def _child(self, order: list[int], writing: int) -> None:
        """Answer prompts, write a line for each, and leave."""
        settings = {
            "CHASKI_PREFIX_CACHE": "on",
            "CHASKI_PREFIX_CACHE_MEMORY": "200KB",
            "CHASKI_PREFIX_CACHE_DISK": "2MB",
            "OLLAMA_MODELS": str(self.folder / "store"),
        }
        code = 1
        try:
            with (
                patch.dict(os.environ, settings),
                patch.object(naming, "BLOCK", _BLOCK),
                patch.object(tiers, "_FEWEST", 1),
                self._load() as model,
            ):
                for number in order:
                    done = model.generate(self.prompts[number], temperature=0, num_predict=6)
                    line = [number, list(done.token_ids), done.done.disk_tokens]
                    os.write(writing, json.dumps(line).encode() + b"\n")
            os.write(writing, b"end\n")
            code = 0
        finally:
            os._exit(code)

    def _load(self) -> chaski.LLM:
        return chaski.load(self.model, context=_CONTEXT, threads=1)

    def _answer(self, model: chaski.LLM, number: int) -> list[int]:
        return list(model.generate(self.prompts[number], temperature=0, num_predict=6).token_ids)

    def _damage(self) -> None:
        """Damage a file now and then: a bit, its end, all of it, or its place."""
        files = sorted((self.folder / "store").rglob("*.block"))
        if not files or self.random.random() < 0.5:
            return
        self.damaged += 1
        path = files[int(self.random.integers(len(files)))]
        data = bytearray(path.read_bytes())
        match int(self.random.integers(4)):
            case 0 if data:
                data[int(self.random.integers(len(data)))] ^= 1 << int(self.random.integers(8))
                path.write_bytes(data)
            case 1:
                path.write_bytes(data[: int(self.random.integers(len(data) + 1))])
            case 2:
                path.unlink()
            case _:
                path.write_bytes(files[int(self.random.integers(len(files)))].read_bytes())


def _read(descriptor: int, seconds: float) -> bytes:
    """Read what comes within so many seconds, or until the end."""
    text, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            text += piece
    os.close(descriptor)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), parsed.seed)
        for begun in range(0, parsed.rounds, 100):
            failures += len(kills.run(min(100, parsed.rounds - begun)))
            rounds = min(begun + 100, parsed.rounds)
            print(
                f"{rounds} rounds: {kills.killed} killed, {kills.damaged} files damaged, "
                f"{kills.answers} answers, {kills.restored} tokens from disk, {failures} failures",
                flush=True,
            )
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
