"""A worker without a model: it writes a given answer in pieces, and records its requests.

The templates of its file make its prompts, as for any model; its tokens are bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chaski.chat.defaults import Defaults
from chaski.chat.events import Attempt, Done, Text
from chaski.chat.layout import Prompt
from chaski.chat.prompts import Prepared, PromptBuilder
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.errors import ChaskiError
from chaski.ml.backend import HOST, DeviceMemory, Memory
from chaski.model.file_dialects import open_model
from chaski.model.pooling import Pooling
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.base_channel import ActiveCall
from chaski.runner.channels.cache_picture import CacheKind, CachePicture, CacheSlot, DescribeCache
from chaski.runner.channels.messages import (
    Answerable,
    Describe,
    Info,
    LookLive,
    ModelCall,
    RenderChat,
    ReplyCallback,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from chaski.runner.engine.live import LiveSequences, TokenTotals
from chaski.runner.engine.outputs import Outputs
from chaski.runner.prefix.use import TierUse
from chaski.runner.states.state_calls import KeepPrefixes, SavedState, TakePrefixes

PREFIXES = TierUse("memory", 2, 300, 4000, 9000), TierUse("disk", 3, 600, 5000, 70000)
MEMORY = Memory((DeviceMemory(HOST, 100, 20, 3), DeviceMemory("imaginary:0", 4000, 500, 6, is_gpu=True)))

# Two of 8 cells belong to the running sequence, which shares one of them with the other.
PICTURE = CachePicture(
    (CacheSlot(2, True, None), CacheSlot(5, False, None)),
    (CacheKind("all tokens", False, 8, np.array([[0, 0, 0, 2, 1], [1, 1, 0, 5, 1]], np.int32)),),
)


@dataclass(slots=True)
class Script:
    """The behaviour of workers.

    pieces: an answer. reason: the reason of its end. hold: answers wait until it is set.
    fail: returns the error of loading. max_context: a request that needs more than `context` gets up to this.
    """

    pieces: Sequence[str | Exception] = ("hello",)
    reason: Literal["stop", "length"] = "stop"
    hold: threading.Event | None = None
    fail: Callable[[dict[str, Any]], ChaskiError | None] = lambda options: None
    context: int = 4000
    max_context: int = 0
    unused_bytes: int = 0
    attempts: tuple[Attempt, ...] = ()
    asked: list[ModelCall] = field(default_factory=list)
    opened: list[FakeWorker] = field(default_factory=list)
    cancelled: int = 0

    def open(self, path: Path, *, progress: Callable[[float], None], **options: Any) -> FakeWorker:
        worker = FakeWorker(self, path, options)
        self.opened.append(worker)
        return worker


@dataclass(slots=True)
class _Handle:
    script: Script
    is_over: bool = False

    def cancel(self) -> None:
        if not self.is_over:
            self.script.cancelled += 1
        self.is_over = True


class _Bytes:
    """A byte tokenizer without BOS."""

    bos_id = None

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(text.encode())

    def token(self, token_id: int) -> str:
        return chr(token_id)


class _Config:
    vocab_size = 256
    pooling = Pooling.MEAN
    is_causal = True


class _Prompts(PromptBuilder):
    """Records the options of the last request. Images are the bytes of their files."""

    tokenizer = _Bytes()
    noted: dict[str, Any]

    def _require_text(self) -> None:
        """Do nothing, since it makes text and embeddings."""

    def _prepared(self, request: Answerable, whole: Prompt, options: Any, *more: Any) -> Prepared:
        self.noted = dict(options)
        return super()._prepared(request, whole, options, *more)


@dataclass(eq=False)
class FakeWorker:
    script: Script
    path: Path
    options: dict[str, Any]
    is_running: bool = True
    num_replicas: int = 1

    def asynchronous(self) -> AsyncModel:
        return AsyncModel(self)

    def close(self) -> None:
        self.is_running = False

    def check_open(self) -> None: ...

    def start(self, call: ModelCall, put: ReplyCallback) -> _Handle:
        if not isinstance(call, Generate | Chat | Fill):  # these are recorded when their prompt is made
            self.script.asked.append(call)
        ticket = _Handle(self.script)
        threading.Thread(target=self._answer, args=(call, put, ticket), daemon=True).start()
        return ticket

    def _answer(self, call: ModelCall, put: ReplyCallback, ticket: _Handle) -> None:
        match call:
            case Describe():
                put(self.script.fail(self.options) or self._info())
            case LookLive():
                put(LiveSequences(seconds=1.0, totals=TokenTotals(), num_sequences=0, sequences=()))
            case DescribeCache():
                put(PICTURE)
            case Tokenize():
                put(Tokens(tuple(call.text.encode())))
            case TokenizeChat():
                prompt = self.prompts.conversation_prompt(call.chat, call.chat.images)
                put(Tokens(tuple(prompt.tokens)))
            case RenderChat():
                put(String(self.prompts.conversation_text(call.chat)))
            case Embed() | Rank():
                try:
                    texts = self.prompts.vector_texts(call)
                except ChaskiError as error:
                    put(error)
                    return
                put(Outputs(np.ones((len(texts), 4), np.float32), sum(map(len, texts))))
            case KeepPrefixes() | TakePrefixes():
                put(SavedState(0, 0, 0.0))
            case Generate() | Chat() | Fill():
                try:
                    prepared = self.prompts.prepare(call, call.images)
                except ChaskiError as error:
                    put(error)
                    return
                self.script.asked.append(Generate(tuple(prepared.prompt.tokens), self.prompts.noted))
                active = ActiveCall(put)
                self._say(prepared, active.parsed(prepared), ticket)
            case _:
                put(String("text"))

    @cached_property
    def prompts(self) -> _Prompts:
        info = self._info()
        file, defaults = open_model(self.path), Defaults()
        return _Prompts(file, _Config(), info.context, defaults, max_context=info.max_context)

    def _info(self) -> Info:
        needed = min(self.options.get("needed_context") or 0, self.script.max_context)
        context = self.options.get("context") or max(self.script.context, needed)
        return Info(
            path="",
            context=context,
            max_context=self.script.max_context,
            unused_bytes=self.script.unused_bytes,
            vocab_size=256,
            chat_template=None,
            load_seconds=0.0,
            memory=MEMORY,
            engine=self.options.get("engine") or "native",
            prefixes=PREFIXES,
        )

    def _say(self, prepared: Prepared, put: ReplyCallback, ticket: _Handle) -> None:
        for piece in self.script.pieces:
            if self.script.hold is not None:
                self.script.hold.wait(10)
            if isinstance(piece, Exception):
                put(piece)
                return
            put(Text(piece, (1,)))
        ticket.is_over = True
        put(
            Done(
                reason=self.script.reason,
                prompt_tokens=len(prepared.prompt.tokens),
                cached_tokens=2,
                generated_tokens=len(self.script.pieces),
                dropped_tokens=prepared.dropped,
                load_seconds=0.0,
                prefill_seconds=0.1,
                decode_seconds=0.2,
                attempts=self.script.attempts,
            )
        )
