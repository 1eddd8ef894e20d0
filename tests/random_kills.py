"""Kill processes that share a prefix cache on disk, and damage its files meanwhile.

They die at any moment, or at one of their changes to files: before it, or after half of a write. Each answer
of later processes is compared with a fresh one, and each block file with its earlier content. The default
tests run a few rounds, and kill at every change of a short run; `python -m tests.random_kills 5000` runs many
rounds, and kills at every change of a longer run.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import chaski
from chaski.runner.engine import prompt_timer
from chaski.runner.prefix import naming, tiers
from chaski.runner.prefix.folders import folder_uses, remove_files
from tests.fatal_changes import FatalChanges
from tests.tiny_llama import write_tiny_llama

__all__ = ["Kills"]

_BLOCK, _CONTEXT = 16, 128
# Children are killed within this many seconds, or at one of this many changes.
_LONGEST, _MOST_CHANGES = 0.3, 250
_PATIENCE = 60.0
_DISK, _LITTLE_DISK = "2MB", "15KB"

Answer = list[Any]


@dataclass
class _Child:
    """A process that answers prompts, until it is killed at `deadline` or by itself."""

    process: int
    reading: int
    deadline: float
    fatal: int


class Kills:
    """Rounds of one or two children each; the seed determines everything random except their timing.

    wrong  wrong answers, and files with changed content
    died   number of deaths at each change
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = np.random.default_rng(seed)
        self.model = write_tiny_llama(folder / "tiny.gguf")
        stems = [self._ids(100) for _ in range(4)]
        self.prompts = [
            stems[number % 4][: int(self.random.integers(1, 100))]
            + self._ids(int(self.random.integers(1, 20)))
            for number in range(24)
        ]
        self.answers = self.restored = self.children = self.killed = self.damaged = self.emptied = 0
        self.wrong: list[str] = []
        self.died: Counter[str] = Counter()
        self._whole: dict[str, bytes] = {}
        self._harmed: dict[str, bytes] = {}
        with patch.dict(os.environ, {"CHASKI_PREFIX_CACHE": "off"}), self._load() as fresh:
            self._fresh = [self._answer(fresh, number)[1:-1] for number in range(len(self.prompts))]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def _root(self) -> Path:
        return self.store / "chaski" / "prefix-cache"

    def run(self, rounds: int) -> None:
        """Run this many rounds of children that answer twelve prompts each, and damage files between them."""
        for _ in range(rounds):
            count = 2 if self.random.random() < 0.2 else 1
            self._end([self._started() for _ in range(count)])
            self._damage()

    def at_every_change(self, first: Sequence[int], then: Sequence[int]) -> None:
        """Let a child die at each change that it makes while answering prompts.

        It begins without a folder, and then with the remains of another child's earlier prompts: more than it
        may keep, a damaged block, and half a file. It removes everything in the end.
        """
        self._clear()
        for fatal in self._each_change():
            self._clear()
            self._end_at(fatal, then, _DISK)
        self._clear()
        self._end([self._start(first, 0)])
        left = self.folder / "left"
        self._harm(min(self._files(), key=lambda path: path.name.split("-")[2] != "16"))
        half = self._files()[0].parent / "0123456789abcdef.1.tmp"
        half.write_bytes(b"half")
        os.utime(half, (1, 1))
        self.store.rename(left)
        for fatal in self._each_change():
            self._clear()
            shutil.copytree(left, self.store)
            self._end_at(fatal, [*first, *then], _LITTLE_DISK)
        shutil.rmtree(left)

    def _each_change(self) -> Iterator[int]:
        """Count up from 1 until three children have not died, since their changes vary."""
        fatal = ended = 0
        while ended < 3:
            died, fatal = self.died.total(), fatal + 1
            yield fatal
            ended = 0 if died < self.died.total() else ended + 1

    def _end_at(self, fatal: int, order: Sequence[int], disk: str) -> None:
        """Let a child die at a change, then let another one answer."""
        before = self._written()
        self._end([self._start(order, fatal, disk, empties=True)])
        if self._written() < before:
            self.wrong.append(f"{before} bytes were written today, and {self._written()} are counted")
        with self._kept(_DISK), self._load() as model:
            for number in order:
                self._check(self._answer(model, number))
        self._look()
        for use in folder_uses(self._root):
            if use.model != str(self.model):
                self.wrong.append(f"{use.path} is said to be of {use.model}")

    def _started(self) -> _Child:
        order = [int(number) for number in self.random.integers(0, len(self.prompts), 12)]
        disk = _LITTLE_DISK if self.random.random() < 0.2 else _DISK
        empties = self.random.random() < 0.05
        match int(self.random.integers(5)):
            case 0:
                return self._start(order, 0, disk, empties)
            case 1 | 2:
                return self._start(order, 0, disk, empties, float(self.random.uniform(0, _LONGEST)))
            case _:
                return self._start(order, int(self.random.integers(1, _MOST_CHANGES)), disk, empties)

    def _start(
        self,
        order: Sequence[int],
        fatal: int,
        disk: str = _DISK,
        empties: bool = False,
        seconds: float = _PATIENCE,
    ) -> _Child:
        """Start a child that dies at a change (0 for none) or after this many seconds."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._answer_all(order, writing, fatal, disk, empties)
        os.close(writing)
        self.children += 1
        self.emptied += empties
        return _Child(child, reading, time.monotonic() + seconds, fatal)

    def _end(self, children: Sequence[_Child]) -> None:
        """Wait for the end of children, and check their answers and files."""
        for child in children:
            text = _read(child.reading, child.deadline)
            if not text.endswith(b"end\n"):
                os.kill(child.process, signal.SIGKILL)
                self.killed += 1
            os.waitpid(child.process, 0)
            for line in text.split(b"\n")[:-1]:
                self._check(json.loads(line) if line != b"end" else None)
        self._look()

    def _look(self) -> None:
        """Check that each block file has its first content, or was damaged."""
        for path in self._files():
            data = path.read_bytes()
            if data != self._harmed.get(path.name) and data != self._whole.setdefault(path.name, data):
                self.wrong.append(f"{path} is not what it was")

    def _check(self, said: Answer | str | None) -> None:
        """Count a child's report: an answer, the change at which it died, or its normal end."""
        if isinstance(said, str):
            self.died[said] += 1
        elif said is not None:
            self.answers += 1
            self.restored += said[-1]
            if said[1:-1] != self._fresh[said[0]]:
                self.wrong.append(f"prompt {said[0]} was answered by {said[1:-1]}")

    def _answer_all(self, order: Sequence[int], writing: int, fatal: int, disk: str, empties: bool) -> None:
        """Answer prompts, write a line for each, and leave."""
        write = os.write

        def tell(what: Answer | str) -> None:
            write(writing, json.dumps(what).encode() + b"\n")

        code = 1
        try:
            with self._kept(disk) as stack:
                if fatal:
                    stack.enter_context(FatalChanges(self.store, fatal, tell).counted())
                with self._load() as model:
                    for number in order:
                        tell(self._answer(model, number))
                if empties:
                    remove_files(self._root)
            write(writing, b"end\n")
            code = 0
        finally:
            os._exit(code)

    @contextmanager
    def _kept(self, disk: str) -> Iterator[ExitStack]:
        """Keep small blocks in this many bytes within the block, and the speed of every prompt."""
        settings = {
            "CHASKI_PREFIX_CACHE": "on",
            "CHASKI_PREFIX_CACHE_MEMORY": "200KB",
            "CHASKI_PREFIX_CACHE_DISK": disk,
            "OLLAMA_MODELS": str(self.store),
        }
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, settings))
            stack.enter_context(patch.object(naming, "BLOCK", _BLOCK))
            stack.enter_context(patch.object(tiers, "_FEWEST", 1))
            stack.enter_context(patch.object(prompt_timer, "_PROMPT", 1))
            yield stack

    def _load(self) -> chaski.LLM:
        return chaski.load(self.model, context=_CONTEXT, threads=1)

    def _answer(self, model: chaski.LLM, number: int) -> Answer:
        """Return the number of a prompt, its answer with probabilities, and the tokens from disk."""
        done = model.generate(self.prompts[number], temperature=0, num_predict=6, logprobs=True)
        sure = [entry.logprob.hex() for entry in done.logprobs]
        return [number, list(done.token_ids), sure, done.done.disk_tokens]

    def _files(self) -> list[Path]:
        return sorted(self.store.rglob("*.block"))

    def _written(self) -> int:
        """Return the bytes that were written today, as the cache counts them."""
        try:
            return int(json.loads(next(self.store.rglob("written.json")).read_bytes())["bytes"])
        except (StopIteration, ValueError, KeyError):
            return 0

    def _clear(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)

    def _damage(self) -> None:
        """Damage a file sometimes."""
        files = self._files()
        if files and self.random.random() < 0.5:
            self._harm(files[int(self.random.integers(len(files)))])

    def _harm(self, path: Path) -> None:
        """Damage a file: flip a bit, cut its end, remove it, or move it."""
        self.damaged += 1
        files = self._files()
        data = bytearray(path.read_bytes())
        match int(self.random.integers(4)):
            case 0 if data:
                data[int(self.random.integers(len(data)))] ^= 1 << int(self.random.integers(8))
            case 1:
                data = data[: int(self.random.integers(len(data) + 1))]
            case 2:
                path.unlink()
                return
            case _:
                data = bytearray(files[int(self.random.integers(len(files)))].read_bytes())
        path.write_bytes(data)
        self._harmed[path.name] = bytes(data)

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self.random.integers(5, 200, count)]


def _read(descriptor: int, end: float) -> bytes:
    """Read until a deadline or the end."""
    text = b""
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
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), parsed.seed)
        kills.at_every_change([0, 1, 2], [3, 4])
        _tell(kills, "every change")
        for begun in range(0, parsed.rounds, 100):
            kills.run(min(100, parsed.rounds - begun))
            _tell(kills, f"{min(begun + 100, parsed.rounds)} rounds")
    print(", ".join(f"{change}: {count}" for change, count in kills.died.most_common()))
    return min(len(kills.wrong), 1)


def _tell(kills: Kills, so_far: str) -> None:
    print(
        f"{so_far}: {kills.children} processes, {kills.killed} killed, {kills.died.total()} of them at a "
        f"change of a file, {kills.damaged} files damaged, {kills.emptied} times emptied, "
        f"{kills.answers} answers, {kills.restored} tokens from disk, {len(kills.wrong)} wrong",
        *kills.wrong,
        sep="\n",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
