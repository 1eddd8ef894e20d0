"""Requests of a simulated world, in the dialects of the server, and their answers alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

import chaski
from tests.simulation.machine import MEMORY
from tests.simulation.scheduler import SCHEDULER, Scheduler
from tests.simulation.weights import SEES, TUNED, adapter_file, picture

__all__ = ["Ask", "Oracle", "Said", "alike_ask", "beam_search", "each_kind", "random_ask"]

_WORDS = ("the llama", " carries", " a load", " of wool", " over", " the mountain", " in", " the rain", "\n")
_TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weigh a load.",
        "parameters": {"type": "object", "properties": {"load": {"type": "string"}}, "required": ["load"]},
    },
}
_SCHEMA = {"type": "array", "items": {"enum": ["a load", "no more"]}, "maxItems": 3}
_GRAMMAR = 'root ::= "it is " ("so" | "not " root)'


class Said(Struct, frozen=True):
    """An answer: its texts, or its vectors, and why it ended."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def begins(self, whole: Said) -> bool:
        """Return whether this can be the beginning of an answer that was cut."""
        return all(mine == theirs[: len(mine)] for mine, theirs in zip(self.texts, whole.texts, strict=False))


class Dialect(Struct, frozen=True):
    """A route: how it is asked, and how its replies are read.

    read  takes the replies of a stream, or the only one
    """

    kind: str
    path: str
    body: Callable[[Ask], dict[str, Any]]
    read: Callable[[list[Any]], Said]


class Ask(Struct, frozen=True):
    """A request. Equal ones have equal answers, so an answer alone is computed once.

    kind     the call of `chaski.LLM` that answers it
    options  sorted pairs, with values in JSON
    images   numbers of pictures
    """

    model: str
    kind: str
    prompt: str
    options: tuple[tuple[str, str], ...]
    dialect: str
    is_stream: bool
    images: tuple[int, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self.options}

    @property
    def path(self) -> str:
        return _DIALECTS[self.dialect].path

    @property
    def body(self) -> dict[str, Any]:
        body = _DIALECTS[self.dialect].body(self)
        return body if self.kind in ("embed", "tokenize") else {**body, "stream": self.is_stream}

    def read(self, replies: list[Any]) -> Said:
        """Return the answer in the replies. Raises LookupError for a reply that lacks a part."""
        return _DIALECTS[self.dialect].read(replies)


def random_ask(random: Random, models: list[str], parallel: int) -> Ask:
    """Return a request of any kind; many begin alike."""
    dialect = random.choice(_WEIGHTED)
    kind = _DIALECTS[dialect].kind
    model = random.choice(models) if kind != "embed" else "vectors"
    start = random.choice((0, 0, 0, 1, 2))
    count = random.choice((1, 2, 4, 7, 10))
    prompt = "".join(_WORDS[(start + i) % len(_WORDS)] for i in range(count))
    if random.random() < 0.3:
        prompt += f" {random.randrange(4)}"
    options: dict[str, Any] = {}
    if kind in ("generate", "chat"):
        options = {"seed": random.randrange(2), "num_predict": random.choice((1, 4, 4, 12))}
        options["temperature"] = random.choice((0, 0, 0.8)) if dialect.startswith("ollama") else 0
        if dialect.startswith("ollama") and random.random() < 0.25:
            options |= random.choice(({"format": _SCHEMA}, {"grammar": _GRAMMAR}, {"draft_num_predict": 0}))
        if dialect == "ollama generate" and random.random() < 0.1 and parallel > 1:
            return beam_search(random, model)
        if dialect == "ollama chat" and model == "two" and random.random() < 0.4:
            options["tools"] = [_TOOL]
    images: tuple[int, ...] = ()
    if kind == "chat" and model == SEES:
        images = random.choice(((), (0,), (0,), (1,), (0, 1), (1, 0)))
    return _packed(model, kind, prompt, options, dialect, random.random() < 0.6, images)


def alike_ask(random: Random, model: str) -> Ask:
    """Return one of a few requests whose prompts have a long beginning in common."""
    prompt = "".join(_WORDS[:9] * 2) + random.choice(("", " 1", " 2", " 3"))
    options = {"seed": 0, "num_predict": random.choice((1, 4)), "temperature": 0}
    if model == SEES:
        images = random.choice(((), (0,), (0, 1)))
        return _packed(model, "chat", prompt, options, "ollama chat", True, images)
    return _packed(model, "generate", prompt, options, "ollama generate", True)


def beam_search(random: Random, model: str) -> Ask:
    """Return a search with several beams."""
    prompt = "".join(_WORDS[: random.choice((1, 4, 8))])
    options = {"num_beams": 2, "num_predict": random.choice((4, 12, 40)), "temperature": 0}
    return _packed(model, "generate", prompt, options, "ollama generate", False)


def each_kind(model: str) -> Iterator[Ask]:
    """Yield a request of each kind, as a stream and whole."""
    usual = {"seed": 0, "num_predict": 2, "temperature": 0}
    for name, dialect in _DIALECTS.items():
        if dialect.kind in ("embed", "tokenize"):
            yield _packed("vectors" if name == "embed" else model, dialect.kind, "a", {}, name, False)
            continue
        for is_stream in (False, True):
            yield _packed(model, dialect.kind, "a", usual, name, is_stream)
        if dialect.kind == "chat" and model == SEES:
            yield _packed(model, dialect.kind, "a", usual, name, True, (0, 1))
    for more in ({"format": _SCHEMA}, {"grammar": _GRAMMAR}, {"tools": [_TOOL]}, {"temperature": 0.8}):
        yield _packed(model, "chat", "a", {**usual, **more}, "ollama chat", True)
    search = {"num_beams": 2, "num_predict": 2, "temperature": 0}
    yield _packed(model, "generate", "a", search, "ollama generate", False)


def _packed(
    model: str,
    kind: str,
    prompt: str,
    options: dict[str, Any],
    dialect: str,
    is_stream: bool,
    images: tuple[int, ...] = (),
) -> Ask:
    pairs = tuple(sorted((name, json.dumps(value)) for name, value in options.items()))
    return Ask(model, kind, prompt, pairs, dialect, is_stream, images)


class Oracle:
    """Answers of requests alone, by models that nothing else uses.

    is_wrong  whether answers of chats are wrong, to test that differences are found
    """

    def __init__(self, files: Mapping[str, Path], context: int, is_wrong: bool = False) -> None:
        self._files = files
        self._context = context
        self._is_wrong = is_wrong
        self._known: dict[tuple[Any, ...], Said] = {}
        self._world = Scheduler(first_ident=1_000_000)

    def answer(self, ask: Ask) -> Said:
        key = ask.model, ask.kind, ask.prompt, ask.options, ask.images
        if key not in self._known:
            with SCHEDULER.aside(self._world), MEMORY.plenty():
                self._known[key] = self._alone(ask)
        return self._known[key]

    def _alone(self, ask: Ask) -> Said:
        model, arguments = self._model(ask.model), ask.arguments
        if ask.kind == "embed":
            return Said((repr(model.embed([ask.prompt]).tolist()),))
        if ask.kind == "tokenize":
            return Said((repr(model.tokenize(ask.prompt)),))
        if ask.model == TUNED:
            arguments["adapter"] = TUNED
        if ask.kind == "chat":
            message = {"role": "user", "content": ask.prompt, "images": [picture(n) for n in ask.images]}
            answer = model.chat([message], **arguments)
            if self._is_wrong:
                return Said((f"{answer.text}!",))
        else:
            answer = model.generate(ask.prompt, **arguments)
        return Said((answer.text,), (answer.done_reason,))

    @cache  # noqa: B019
    def _model(self, name: str) -> chaski.LLM:
        tuned = name == TUNED
        return chaski.load(
            self._files["one" if tuned else name],
            context=self._context,
            threads=1,
            parallel=2,
            prompt_cache=False,
            adapters={TUNED: adapter_file()} if tuned else {},
        )


def _ollama_messages(ask: Ask) -> list[dict[str, Any]]:
    images = [_in_base64(number) for number in ask.images]
    return [{"role": "user", "content": ask.prompt, **({"images": images} if images else {})}]


def _openai_messages(ask: Ask) -> list[dict[str, Any]]:
    urls = [f"data:image/png;base64,{_in_base64(number)}" for number in ask.images]
    return _parted(ask, [{"type": "image_url", "image_url": {"url": url}} for url in urls])


def _anthropic_messages(ask: Ask) -> list[dict[str, Any]]:
    sources = [
        {"type": "base64", "media_type": "image/png", "data": _in_base64(number)} for number in ask.images
    ]
    return _parted(ask, [{"type": "image", "source": source} for source in sources])


def _parted(ask: Ask, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    content = [*images, {"type": "text", "text": ask.prompt}] if images else ask.prompt
    return [{"role": "user", "content": content}]


def _in_base64(number: int) -> str:
    return base64.b64encode(picture(number)).decode()


def _ollama_options(ask: Ask) -> dict[str, Any]:
    """Return the options as Ollama's routes take them: some are fields of their own."""
    options = ask.arguments
    own = {name: options.pop(name) for name in ("format", "tools") if name in options}
    return {"model": ask.model, "options": options, **own}


def _limits(ask: Ask) -> dict[str, Any]:
    options = ask.arguments
    return {
        "model": ask.model,
        "temperature": options["temperature"],
        "seed": options["seed"],
        "max_tokens": options["num_predict"],
    }


def _read_generate(replies: list[Any]) -> Said:
    return Said(("".join(reply["response"] for reply in replies),), _ends(replies))


def _read_chat(replies: list[Any]) -> Said:
    return Said(("".join(reply["message"]["content"] for reply in replies),), _ends(replies))


def _ends(replies: list[Any]) -> tuple[str, ...]:
    return tuple(reply["done_reason"] for reply in replies if reply["done"])


def _read_openai(replies: list[Any]) -> Said:
    text, ends = [], []
    for reply in replies:
        for choice in reply["choices"]:
            part = choice.get("delta", choice.get("message", choice))
            text.append(part.get("content") or part.get("text") or "")
            if choice.get("finish_reason"):
                ends.append(choice["finish_reason"])
    return Said(("".join(text),), tuple(ends))


_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


def _read_anthropic(replies: list[Any]) -> Said:
    text, ends = [], []
    for reply in replies:
        if reply["type"] == "message":
            text += [part["text"] for part in reply["content"]]
            ends.append(_STOPS[reply["stop_reason"]])
        elif reply["type"] == "content_block_delta":
            text.append(reply["delta"]["text"])
        elif reply["type"] == "message_delta":
            ends.append(_STOPS[reply["delta"]["stop_reason"]])
    return Said(("".join(text),), tuple(ends))


_DIALECTS = {
    "ollama generate": Dialect(
        "generate",
        "/api/generate",
        lambda ask: {**_ollama_options(ask), "prompt": ask.prompt, "raw": True},
        _read_generate,
    ),
    "ollama chat": Dialect(
        "chat",
        "/api/chat",
        lambda ask: {**_ollama_options(ask), "messages": _ollama_messages(ask)},
        _read_chat,
    ),
    "openai chat": Dialect(
        "chat",
        "/v1/chat/completions",
        lambda ask: {**_limits(ask), "messages": _openai_messages(ask)},
        _read_openai,
    ),
    "openai text": Dialect(
        "generate",
        "/v1/completions",
        lambda ask: {**_limits(ask), "prompt": ask.prompt, "raw": True},
        _read_openai,
    ),
    "anthropic": Dialect(
        "chat",
        "/v1/messages",
        lambda ask: {**_limits(ask), "messages": _anthropic_messages(ask)},
        _read_anthropic,
    ),
    "embed": Dialect(
        "embed",
        "/api/embed",
        lambda ask: {"model": ask.model, "input": [ask.prompt]},
        lambda replies: Said((repr(replies[0]["embeddings"]),)),
    ),
    "tokenize": Dialect(
        "tokenize",
        "/api/tokenize",
        lambda ask: {"model": ask.model, "text": ask.prompt},
        lambda replies: Said((repr(replies[0]["tokens"]),)),
    ),
}
_WEIGHTED = ["ollama generate"] * 6 + ["ollama chat"] * 5 + list(_DIALECTS)
