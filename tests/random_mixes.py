"""Run random concurrent requests, and compare each bit for bit with the same request alone.

They share beginnings, fill their context exactly, drop parts of it repeatedly, also parts with images, arrive
while others run, are abandoned before their end, and are interrupted at any line. The default tests run a few
of them; `python -m tests.random_mixes 20000` runs many.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import chaski
from chaski.chat.requests import generate_request
from chaski.chat.several import Request
from chaski.convert.convert import convert
from chaski.errors import OptionError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.runner.prefix import following, naming, tiers
from chaski.runner.prefix.slots import Policy
from tests.cache_checks import assert_whole
from tests.eagle3 import write_eagle3, write_quieter
from tests.interrupting import Lines, raise_signal
from tests.mllama.test_mllama import DATA as MLLAMA
from tests.mllama.test_mllama import png
from tests.nextn import write_with_blocks
from tests.own_heads import write_with_heads
from tests.rewriting import all_tensors
from tests.text.token_fixtures import sentencepiece_metadata
from tests.tiny_llama import write_tiny_llama
from tests.tiny_vision import image

__all__ = ["MODELS", "Mix", "Model"]

DATA = Path(__file__).parent / "data"
CONTEXTS = (32, 48, 64, 96)
IN_BLOCKS = ("i16", "q8_0", "q4_0", "q3_0", "q4_0:q3_0")
"""Types of keys and values for models whose heads are multiples of 32 elements."""
CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"choice": ["a load of wool", "two loads of wool", "no more"]},
    {"regex": r"the (load|llama) carries [0-9]{1,3} mountains\."},
    {"format": {"type": "array", "items": {"enum": ["a load", "no more"]}, "maxItems": 3}},
    {"grammar": 'root ::= "it is " ("so" | "not " root)'},
)
WORDS = ("the", " load", "carries", " mountains", "llama 0", "\n", "x", " over and over")

Random = np.random.Generator


@dataclass(frozen=True)
class Model:
    """A model of the mixes: its file or its writer, and the features that requests can use.

    `pictures` makes the image of a number. `draft` writes an attached draft, which requests alone do not use.
    `spells_json`: the vocabulary contains the characters of JSON. `expert_memory`: others than requests alone
    read experts from the file.
    """

    name: str
    path: Callable[[Path], Path | str]
    kv_types: tuple[str, ...] = ("i16", "f16", "f32")
    pictures: Callable[[int], Any] | None = None
    draft: Callable[[Path], Path] | None = None
    spells_json: bool = False
    expert_memory: int | None = None


def _fixture(name: str, folder: Path) -> Path:
    return DATA / name


def _llama(folder: Path) -> Path:
    path = folder / "llama.gguf"
    return path if path.exists() else write_tiny_llama(path)


def _spaced(folder: Path) -> Path:
    path = folder / "spaced.gguf"
    return path if path.exists() else write_tiny_llama(path, tokenizer=sentencepiece_metadata())


def _with_blocks(name: str, folder: Path) -> Path:
    path = folder / f"{name}-with-blocks.gguf"
    return path if path.exists() else write_with_blocks(f"{name}/usual", path)


def _with_heads(name: str, folder: Path) -> Path:
    path = folder / f"{name}-with-heads.gguf"
    return path if path.exists() else write_with_heads(name, path)


def _quieter(name: str, folder: Path) -> Path:
    path = folder / f"{name}-quieter.gguf"
    return path if path.exists() else write_quieter(name, path)


def _eagle3(name: str, folder: Path) -> Path:
    path = folder / f"{name}-eagle3.gguf"
    return path if path.exists() else write_eagle3(_quieter(name, folder), path)


def _with_window(name: str, window: int, folder: Path) -> Path:
    """Write a fixture with another window."""
    path = folder / f"{name}-window-{window}.gguf"
    if not path.exists():
        file = open_gguf(DATA / f"architectures/{name}.gguf")
        metadata = {
            **file.metadata,
            f"{file.metadata['general.architecture']}.attention.sliding_window": window,
        }
        write_gguf(path, metadata, all_tensors(file))
    return path


def _mllama(folder: Path) -> Path:
    path = folder / "mllama.gguf"
    if not path.exists():
        convert(MLLAMA, path, "F32")
    return path


def _png(number: int) -> bytes:
    return png(("small", "high", "wide", "large")[number % 4])


MODELS = [
    Model("llama", _llama, spells_json=True),
    Model("llama with spaces", _spaced, spells_json=True),
    *(
        Model(name, partial(_fixture, f"architectures/{name}.gguf"))
        for name in ("qwen3", "gpt-oss", "llama4", "lfm2", "qwen3moe")
    ),
    Model("gemma3", partial(_fixture, "architectures/gemma3.gguf"), IN_BLOCKS),
    *(
        Model(f"{name}, window {window}", partial(_with_window, name, window))
        for name, window in (("phi3", 24), ("gemma3", 20), ("gemma4", 31), ("gpt-oss", 40))
    ),
    *(Model(f"{name} with heads", partial(_with_heads, name)) for name in ("qwen35", "qwen3next")),
    *(Model(f"{name} with blocks", partial(_with_blocks, name)) for name in ("glm4moe", "mimo2", "step35")),
    *(
        Model(f"{name} with EAGLE-3", partial(_quieter, name), draft=partial(_eagle3, name))
        for name in ("qwen3", "gemma3")
    ),
    *(
        Model(f"{name} from the file", partial(_fixture, f"architectures/{name}.gguf"), expert_memory=size)
        for name, size in (("qwen3moe", 50_000), ("gpt-oss", 100_000))
    ),
    Model("guide", lambda folder: "guide", IN_BLOCKS, spells_json=True),
    Model("gemma3 sees", partial(_fixture, "vision/gemma3.gguf"), pictures=partial(image, "gemma3")),
    Model("mistral3 sees", partial(_fixture, "vision/mistral3.gguf"), pictures=_png),
    Model("mllama", _mllama, pictures=_png),
]


@dataclass
class Asked:
    """A request, and its answer so far."""

    prompt: str | list[int]
    images: list[Any]
    options: dict[str, Any]
    stream: Any = None
    events: list[Any] = field(default_factory=list)
    was_left: bool = False

    def begun(self, model: chaski.LLM) -> Any:
        """Return the stream of the answer; a beam search gives it all at its end."""
        return model._stream(Request(generate_request(self.prompt, "", self.options), self.images))

    def said(self) -> tuple[Any, ...]:
        """Return tokens with their scores, text, and the number of dropped tokens."""
        texts = [event for event in self.events if isinstance(event, chaski.Text)]
        logprobs = tuple(entry for event in texts for entry in event.logprobs)
        tokens = tuple(token for event in texts for token in event.token_ids)
        dones = [event for event in self.events if isinstance(event, chaski.Done)]
        ends = [(done.reason, done.shifted_tokens, done.generated_tokens) for done in dones]
        return tokens, logprobs, "".join(event.text for event in texts), ends

    def agrees(self, alone: Asked) -> bool:
        """Return whether this is the answer alone, or its beginning if the reader left."""
        mine, whole = self.said(), alone.said()
        if not self.was_left:
            return mine == whole
        return all(theirs[: len(own)] == own for own, theirs in zip(mine[:3], whole[:3], strict=True))


class Mix:
    """One model in one setting, with `count` requests; the seed determines everything random.

    searches  half of the requests are beam searches
    """

    def __init__(self, model: Model, seed: int, count: int, folder: Path, *, searches: bool = False) -> None:
        self.searches = searches
        self.random = np.random.default_rng(seed)
        self.model = model
        self.count = count
        self.path = model.path(folder)
        self.draft = None if model.draft is None else model.draft(folder)
        pick = self.random.choice
        self.context = int(pick(CONTEXTS))
        self.settings: dict[str, Any] = {
            "context": self.context,
            "kv_type": str(pick(model.kv_types)),
            "threads": int(pick((1, 1, 2))),
        }
        self.parallel = int(self.random.integers(3 if searches else 1, 5))
        sizes = (9, 12, 16, 24, 512) if model.pictures else (self.parallel, 4, 5, 7, 16, 24, 512)
        self.num_batch = max(int(pick(sizes)), self.parallel)
        self.policy = list(Policy)[int(self.random.integers(3))]
        self.block = int(pick((16, 16, 32, 256)))
        self.prefix_cache = {
            "CHASKI_PREFIX_CACHE": str(pick(("on", "memory", "off"), p=(0.5, 0.3, 0.2))),
            "CHASKI_PREFIX_CACHE_MEMORY": str(pick(("100KB", "1MB", "1GB"))),
            "CHASKI_PREFIX_CACHE_DISK": str(pick(("300KB", "1GB"))),
            "OLLAMA_MODELS": str(folder / f"store-{seed}"),
        }
        self.stems = [self._ids(2 * self.context) for _ in range(3)]
        self.forgotten = self.interrupts = 0
        self.words: list[str] = []
        self.restored: Counter[str] = Counter()

    def __str__(self) -> str:
        kept = f"{self.prefix_cache}, blocks of {self.block}"
        return (
            f"{self.model.name} {self.settings}, parallel {self.parallel}, num_batch {self.num_batch}, {kept}"
        )

    def run(self) -> list[Asked]:
        """Run all requests concurrently; return those whose answer differs from the answer alone.

        Half of them run after the model was loaded again, with its prefixes on disk.
        """
        count, different = self.count, []
        num_alone = self.parallel if self.searches else 1
        with (
            patch.dict(os.environ, self.prefix_cache),
            patch.object(naming, "BLOCK", self.block),
            patch.object(tiers, "_FEWEST", 1),
            patch.object(following, "LEAST", 4),
            chaski.load(self.path, parallel=num_alone, prompt_cache=False, **self.settings) as alone,
        ):
            for self.count in (count // 2, count - count // 2):
                different += self._run(alone)
        self.count = count
        return different

    def _run(self, alone: chaski.LLM) -> list[Asked]:
        beside = {
            "parallel": self.parallel,
            "num_batch": self.num_batch,
            "draft": self.draft,
            "expert_memory": self.model.expert_memory,
        }
        with chaski.load(self.path, **beside, **self.settings) as loaded:
            self.words = _words(loaded)
            loaded.engine._prefix_cache.policy = self.policy
            different = []
            for asked in self._asked_at_random(loaded):
                told = Asked(asked.prompt, asked.images, asked.options)
                told.events = list(told.begun(alone))
                self.forgotten += told.said()[3][0][1] > 0
                if not asked.agrees(told):
                    different.append(asked)
            assert_whole(loaded.engine)
            if loaded.engine.tiers is not None:
                counts = loaded.engine.tiers.counts
                for tier, tokens in counts.tokens.items():
                    self.restored[tier] += tokens
                was_evicted = self.prefix_cache["CHASKI_PREFIX_CACHE_DISK"] == "300KB"
                assert was_evicted or not counts.failed, "a block could not be used"
        return different

    def _asked_at_random(self, model: chaski.LLM) -> Iterator[Asked]:
        """Yield requests as they end; up to twice as many run or wait as there are slots."""
        running: list[Asked] = []
        begun = 0
        while running or begun < self.count:
            if begun < self.count and len(running) < 2 * self.parallel and self.random.random() < 0.3:
                running.append(self._begin(model))
                begun += 1
            if not running:
                continue
            asked = running[int(self.random.integers(len(running)))]
            event = self._next(asked)
            if event is not None:
                asked.events.append(event)
                asked.was_left = self.random.random() < 0.01
            if event is None or asked.was_left:
                asked.stream.close()
                running.remove(asked)
                yield asked

    def _next(self, asked: Asked) -> Any:
        """Return the next event, or None at the end; sometimes a Ctrl-C arrives meanwhile."""
        if self.random.random() > 0.02:
            return next(asked.stream, None)
        try:
            with Lines(int(self.random.integers(1, 700)), raise_signal):
                return next(asked.stream, None)
        except KeyboardInterrupt:
            asked.was_left = True
            self.interrupts += 1
            return None

    def _begin(self, model: chaski.LLM) -> Asked:
        while True:
            asked = self._request()
            if self.searches and self.random.random() < 0.5:
                asked.options = self._search(asked.options)
            asked.stream = asked.begun(model)
            try:
                asked.events.append(next(asked.stream))
            except OptionError:
                if not asked.images:
                    raise
                continue  # an image cannot be cut, or the prompt is too long with its images
            return asked

    def _request(self) -> Asked:
        pick, below = self.random.choice, lambda end: int(self.random.integers(end))
        options: dict[str, Any] = {
            "seed": below(1000),
            "temperature": float(pick((0, 0.8, 1.5))),
            "top_k": int(pick((0, 5, 40))),
            "repeat_penalty": float(pick((1.0, 1.2))),
            "logprobs": True,
            "num_keep": int(pick((0, 4, below(self.context + 1), self.context))),
            "num_predict": int(pick((1, 5, below(self.context), 3 * self.context))),
            "draft_num_predict": int(pick((0, 7))),
            "shift": self.random.random() < 0.9,
            "truncate": True,
        }
        is_constrained = self.random.random() < 0.15
        if is_constrained:
            constraint = CONSTRAINTS[below(len(CONSTRAINTS))]
            options |= constraint if self.model.spells_json or "format" not in constraint else {}
        if self.words and self.random.random() < 0.3:
            options |= self._budget(is_constrained)
        if self.model.pictures is not None and self.random.random() < 0.6:
            return self._with_image(options)
        stem = self.stems[below(3)]
        length = int(pick((1, self.context, self.context - 1, 1 + below(self.context), below(20) + 1)))
        shared = below(length + 1) if self.random.random() < 0.6 else length
        return Asked(stem[:shared] + self._ids(length - shared), [], options)

    def _budget(self, is_constrained: bool) -> dict[str, Any]:
        """Return a limit for thoughts between words that occur in any text.

        The words of a constrained answer must not look like the beginning of a thought.
        """
        places = self.random.integers(len(self.words), size=3)
        opening, closing, header = (self.words[place] for place in places)
        thought = {
            "opening": opening,
            "closing": closing,
            "header": header if self.random.random() < 0.5 else "",
            "is_open": is_constrained or self.random.random() < 0.5,
            "repeats": not is_constrained and self.random.random() < 0.5,
            "end": closing + header if self.random.random() < 0.5 else "",
        }
        count = int(self.random.choice((0, 1, 5, self.random.integers(self.context))))
        return {"reasoning_budget": count, "format_thought": thought}

    def _search(self, options: dict[str, Any]) -> dict[str, Any]:
        kept = {name: options[name] for name in ("logprobs", "num_keep", "num_predict", "truncate")}
        return kept | {
            "num_beams": int(self.random.integers(2, self.parallel + 1)),
            "length_penalty": float(self.random.choice((0, 1, 2, -1))),
            "early_stopping": self.random.random() < 0.3,
            "top_logprobs": int(self.random.choice((0, 3))),
            "num_predict": min(max(1, kept["num_predict"]), 12),
        }

    def _with_image(self, options: dict[str, Any]) -> Asked:
        """Return a text with images that shares its beginning with others."""
        assert self.model.pictures is not None
        count = int(self.random.integers(1, 4))
        first = int(self.random.integers(3))
        parts = []
        for index in range(count):
            words = self.random.integers(1, 4)
            start = int(self.random.integers(2))
            parts += [WORDS[(start + word) % len(WORDS)] for word in range(words)]
            parts.append(f"[img-{index}]")
        tail = self.random.choice(WORDS, int(self.random.integers(4))).tolist()
        pictures = [self.model.pictures(first + index) for index in range(count)]
        return Asked("".join(parts + tail), pictures, options)

    def _ids(self, count: int) -> list[int]:
        return [int(token) for token in self.random.integers(5, 60, count)]


def _words(model: chaski.LLM) -> list[str]:
    """Return the texts of single tokens that texts begin with as well as contain."""
    words = {token: model.detokenize([token]) for token in range(5, 60)}
    return [
        word
        for token, word in words.items()
        if word and word.strip() == word and model.tokenize(word)[-1:] == [token]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beams", action="store_true", help="half of the requests are beam searches")
    parser.add_argument("--of", help="only the model of this name")
    parsed = parser.parse_args(arguments)
    # A shell lets its background commands ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = failures = forgotten = interrupts = 0
    restored: Counter[str] = Counter()
    seed = parsed.seed
    models = [model for model in MODELS if parsed.of in (None, model.name)]
    with tempfile.TemporaryDirectory() as folder:
        while done < parsed.requests:
            mix = Mix(models[seed % len(models)], seed, 24, Path(folder), searches=parsed.beams)
            try:
                different = mix.run()
            except Exception as error:
                print(f"seed {seed}: {mix}: {type(error).__name__}: {error}", flush=True)
                failures += 1
            else:
                for asked in different:
                    print(f"seed {seed}: {mix}: differs: {asked.options}", flush=True)
                failures += len(different)
            done += mix.count
            forgotten += mix.forgotten
            interrupts += mix.interrupts
            restored += mix.restored
            seed += 1
            if seed % 20 == 0 or done >= parsed.requests:
                counts = f"{forgotten} of them shifted, {interrupts} interrupted, {failures} failures"
                counts += f", tokens restored: {dict(restored)}"
                print(f"{done} requests, {counts}, up to seed {seed}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    raise SystemExit(main())
