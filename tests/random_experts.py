"""Send random requests to mixtures that read experts from their file, while everything around them changes.

A round has one model with room for few experts. One or two processes answer its requests, with a prefix cache
on disk that both share. Meanwhile the room for experts grows and shrinks, processes are killed, the file is
cut within its experts and made whole again, or replaced by a shorter one, and no more can be written to the
disk. In some rounds an emulated GPU has a few experts of each layer, which move as tokens choose them. Each
answer is compared bit for bit with that of the model in memory, alone. Only where the file was cut may a
request end with an error instead. The default tests run a few rounds; `python -m tests.random_experts 5000`
runs at least as many requests.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import chaski
from chaski.chat.requests import generate_request
from chaski.chat.several import Request
from chaski.errors import ChaskiError, ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.ml.cpu import experts
from chaski.ml.cpu.experts import ExpertMemory
from chaski.ml.sharded import expert_tiers
from chaski.runner.prefix import naming, tiers
from tests.cuda.emulated import NAME
from tests.ml.test_expert_store import least_memory
from tests.rewriting import all_tensors

__all__ = ["NAMES", "Round"]

NAMES = ("qwen3moe", "gpt-oss", "qwen35moe", "llama4", "granitemoe", "gemma4-moe", "mixtral", "qwen2moe")
_DATA = Path(__file__).parent / "data" / "architectures"
_PATIENCE = 120.0
_CUT = "cannot be read: "
_ROOM_ON_DISK = 20_000
"""Bytes of a file that a process may write while its disk is full."""

Answer = list[Any]


class Round:
    """Some requests to one model. The seed determines everything random except the timing.

    wrong   descriptions of wrong answers
    counts  of answers, errors because the file was cut, killed processes and other events
    """

    def __init__(self, seed: int, folder: Path, count: int = 48) -> None:
        self.random = np.random.default_rng(seed)
        self.name = NAMES[seed % len(NAMES)]
        self.folder = folder / f"round-{seed}"
        self.folder.mkdir()
        self.path = self.folder / f"{self.name}.gguf"
        self._write_model()
        self.whole = self.path.read_bytes()
        self.least = least_memory(self.path)
        pick = self.random.choice
        self.settings: dict[str, Any] = {
            "context": int(pick((32, 48, 64))),
            "kv_type": str(pick(("i16", "f16", "f32"))),
            "threads": 1,
        }
        self.cuts = self.random.random() < 0.4
        self.has_gpu = seed // len(NAMES) % 3 == 1
        self.stems = [self._ids(64) for _ in range(3)]
        self.requests = [self._request() for _ in range(count)]
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        places = f"{'cut' if self.cuts else 'whole'}{', GPU' if self.has_gpu else ''}"
        return f"{self.name} {self.settings}, {places}: {dict(self.counts)}"

    def run(self) -> None:
        """Answer all requests, each by the first process that lives long enough, and compare the answers."""
        with chaski.load(self.path, prompt_cache=False, backend="cpu", **self.settings) as model:
            alone = [_told(_begun(model, request)) for request in self.requests]
        left = set(range(len(self.requests)))
        while left and not self.wrong:
            several = len(left) > 1 and self.random.random() < 0.3
            parts = [sorted(left)[::2], sorted(left)[1::2]] if several else [sorted(left)]
            self.counts["processes"] += len(parts)
            self.counts["pairs"] += several
            for number, answer in self._answers(parts):
                left.discard(number)
                self._compare(number, answer, alone[number])

    def _compare(self, number: int, answer: Answer | str, alone: Answer) -> None:
        if isinstance(answer, str):
            self.counts["errors"] += 1
            if not self.cuts or _CUT not in answer:
                self.wrong.append(f"request {number} ended with: {answer}")
        else:
            self.counts["answers"] += 1
            if answer != json.loads(json.dumps(alone)):
                self.wrong.append(f"request {number} {self.requests[number]} was answered by {answer}")

    def _answers(self, parts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Answer | str]]:
        """Let one process for each part answer its requests; yield what they tell."""
        children = dict(self._started(part) for part in parts)
        deadline = time.monotonic() + _PATIENCE
        kills = {
            reading: time.monotonic() + float(self.random.uniform(0.05, 1.5))
            for reading in children
            if self.random.random() < 0.4
        }
        texts = dict.fromkeys(children, b"")
        is_cut = False
        while children:
            ready, _, _ = select.select(list(children), [], [], float(self.random.uniform(0, 0.03)))
            for reading in ready:
                text = os.read(reading, 1 << 16)
                texts[reading] += text
                deadline = max(deadline, time.monotonic() + _PATIENCE)  # an emulated GPU takes its time
                if not text:
                    os.waitpid(children.pop(reading), 0)
            now = time.monotonic()
            for reading, process in children.items():
                if now > kills.get(reading, deadline):
                    kills[reading] = deadline + _PATIENCE
                    self.counts["killed"] += 1
                    os.kill(process, signal.SIGKILL)
            if now > deadline:
                self.wrong.append("a process hangs")
                deadline += 2 * _PATIENCE
                for process in children.values():
                    os.kill(process, signal.SIGKILL)
            if self.cuts and self.random.random() < 0.2:
                is_cut = not is_cut
                self._mend() if not is_cut else self._cut()
        self._mend()
        for reading, text in texts.items():
            os.close(reading)
            for line in text.split(b"\n")[:-1]:
                number, answer = json.loads(line)
                if number is None:
                    self._report(answer)
                else:
                    yield number, answer

    def _report(self, error: str) -> None:
        """Count a model that could not be loaded, which may only be because of a cut file."""
        self.counts["not loaded"] += 1
        if not self.cuts:
            self.wrong.append(error)

    def _cut(self) -> None:
        """Cut the file somewhere in its experts, or put a shorter file in its place."""
        place = int(self.random.integers(self.first, len(self.whole)))
        if self.random.random() < 0.3:
            self.counts["replaced"] += 1
            shorter = self.folder / "shorter"
            shorter.write_bytes(self.whole[:place])
            shorter.replace(self.path)
        else:
            self.counts["cut"] += 1
            os.truncate(self.path, place)

    def _mend(self) -> None:
        """Append what is missing. What is there stays, since processes read it."""
        with self.path.open("r+b") as file:
            place = file.seek(0, os.SEEK_END)
            file.write(self.whole[place:])

    def _started(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Start a process that answers requests; return the descriptor of its reports, and its id."""
        seed = int(self.random.integers(1 << 30))
        reading, writing = os.pipe()
        process = os.fork()
        if process:
            os.close(writing)
            return reading, process
        os.close(reading)
        try:
            self._answer_all(numbers, writing, np.random.default_rng(seed))
        except ChaskiError as error:
            _tell(writing, None, str(error))
        except BaseException:
            _tell(writing, None, traceback.format_exc())
        finally:
            os._exit(0)

    def _answer_all(self, numbers: Sequence[int], writing: int, random: np.random.Generator) -> None:
        if random.random() < 0.3 and not self.has_gpu:  # an emulated GPU writes its kernels
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM_ON_DISK, most))
        parallel = int(random.integers(1, 7))
        beside = {"parallel": parallel, "num_batch": int(random.choice((parallel, 16, 512)))}
        room = int(self.least * random.uniform(1, 1.4))
        place: dict[str, Any] = {"backend": "cpu"}
        if self.has_gpu:
            place = {"backend": NAME, "gpu_experts": int(random.integers(1, 4))}
        with (
            self._surroundings(random),
            _moving(self.least, int(random.integers(1 << 30))),
            chaski.load(self.path, expert_memory=room, **beside, **place, **self.settings) as model,
        ):
            for number, answer in _answered(model, self.requests, list(numbers), 2 * parallel, random):
                _tell(writing, number, answer)

    @contextmanager
    def _surroundings(self, random: np.random.Generator) -> Iterator[None]:
        settings = {
            "CHASKI_PREFIX_CACHE": str(random.choice(("on", "memory", "off"), p=(0.6, 0.2, 0.2))),
            "CHASKI_PREFIX_CACHE_MEMORY": str(random.choice(("100KB", "1GB"))),
            "CHASKI_PREFIX_CACHE_DISK": str(random.choice(("300KB", "1GB"))),
            "OLLAMA_MODELS": str(self.folder / "store"),
        }
        with (
            patch.dict(os.environ, settings),
            patch.object(naming, "BLOCK", 16),
            patch.object(tiers, "_FEWEST", 1),
            patch.object(experts, "_STEP", 0.0),
            patch.object(expert_tiers, "_INTERVAL", int(random.choice((1, 16)))),
            patch.object(expert_tiers, "_WORTH", 0.0),
            patch.object(experts, "spare_memory", lambda: 0),
            patch.object(experts, "_PATIENCE", int(random.choice((0, 20, 500), p=(0.4, 0.4, 0.2)))),
        ):
            yield

    def _write_model(self) -> None:
        """Write the model with its experts at the end of the file."""
        with open_gguf(_DATA / self.path.name) as file:
            tensors = all_tensors(file)
            names = sorted(tensors, key=lambda name: "_exps.weight" in name)
            write_gguf(self.path, file.metadata, {name: tensors[name] for name in names})
        with open_gguf(self.path) as file:
            self.first = min(info.offset for name, info in file.tensors.items() if "_exps.weight" in name)

    def _request(self) -> tuple[list[int], dict[str, Any]]:
        pick, below = self.random.choice, lambda end: int(self.random.integers(end))
        context = self.settings["context"]
        length = int(pick((1, 1 + below(8), 1 + below(context - 1))))
        shared = below(length + 1) if self.random.random() < 0.6 else length
        prompt = self.stems[below(3)][:shared] + self._ids(length - shared)
        return prompt, {
            "seed": below(1000),
            "temperature": float(pick((0, 0.8, 1.5))),
            "top_k": int(pick((0, 5, 40))),
            "logprobs": True,
            "num_predict": int(pick((1, 5, 20, 2 * context))),
            "num_keep": int(pick((0, 4))),
            "shift": self.random.random() < 0.8,
            "truncate": True,
        }

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self.random.integers(5, 60, count)]


@contextmanager
def _moving(least: int, seed: int) -> Iterator[None]:
    """Let the room for experts of a model that is loaded within the block grow and shrink."""
    random = np.random.default_rng(seed)

    def move(memory: ExpertMemory) -> None:
        while not memory._is_closing.wait(0.003):
            memory.adapt(int(random.integers(-2 * least, 2 * least)))

    with patch.object(ExpertMemory, "_watch", move):
        yield


def _answered(
    model: chaski.LLM,
    requests: Sequence[tuple[list[int], dict[str, Any]]],
    waiting: list[int],
    most: int,
    random: np.random.Generator,
) -> Iterator[tuple[int, Answer | str]]:
    """Answer requests, up to `most` at a time; yield each number with its answer or its error."""
    running: dict[int, tuple[Any, list[Any]]] = {}
    while waiting or running:
        if waiting and len(running) < most and random.random() < 0.5:
            number = waiting.pop(int(random.integers(len(waiting))))
            running[number] = _begun(model, requests[number]), []
        if not running:
            continue
        number = list(running)[int(random.integers(len(running)))]
        stream, events = running[number]
        answer: Answer | str | None = None
        try:
            event = next(stream, None)
        except ModelError as error:
            answer = str(error)
        else:
            answer = _told(events) if event is None else None
            events.append(event)
        if answer is not None:
            del running[number]
            yield number, answer


def _begun(model: chaski.LLM, request: tuple[list[int], dict[str, Any]]) -> Any:
    prompt, options = request
    return model._stream(Request(generate_request(prompt, "", options), []))


def _told(events: Any) -> Answer:
    """Return tokens with their scores, text, and how the answer ended."""
    found = list(events)
    texts = [event for event in found if isinstance(event, chaski.Text)]
    ends = [(each.reason, each.shifted_tokens) for each in found if isinstance(each, chaski.Done)]
    scores = [entry.logprob.hex() for event in texts for entry in event.logprobs]
    return [[token for event in texts for token in event.token_ids], scores, ends]


def _tell(writing: int, number: int | None, answer: Answer | str) -> None:
    os.write(writing, json.dumps([number, answer]).encode() + b"\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    failures, seed = 0, parsed.seed
    with tempfile.TemporaryDirectory() as folder:
        while counts["answers"] + counts["errors"] < parsed.requests:
            mix = Round(seed, Path(folder))
            mix.run()
            for each in mix.wrong:
                print(f"seed {seed}: {mix}: {each}", flush=True)
            failures += len(mix.wrong)
            counts += mix.counts
            seed += 1
            if seed % 10 == 0:
                print(f"up to seed {seed}: {failures} failures, {dict(counts)}", flush=True)
    print(f"up to seed {seed}: {failures} failures, {dict(counts)}")
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
