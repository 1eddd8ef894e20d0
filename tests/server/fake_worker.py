"""A worker without a model: it says what it is told to, in pieces, and notes what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chaski.chat.events import Done, Text
from chaski.errors import ChaskiError
from chaski.ml.backend import Memory
from chaski.runner.engine.outputs import Outputs
from chaski.runner.service.asynchronous import AsyncModel
from chaski.runner.service.messages import (
    Describe,
    Embed,
    Generate,
    Info,
    ModelCall,
    ReplyCallback,
    String,
    Tokenize,
    Tokens,
)

MEMORY = Memory(weights=100, cache=20, plans=3)


@dataclass(slots=True)
class Script:
    """What workers do.

    pieces: an answer. reason: why it ends. hold: no answer goes on before it is set.
    fail: what loading raises.
    """

    pieces: Sequence[str | Exception] = ("hello",)
    reason: Literal["stop", "length"] = "stop"
    hold: threading.Event | None = None
    fail: Callable[[dict[str, Any]], ChaskiError | None] = lambda options: None
    context: int = 4000
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


@dataclass(slots=True, eq=False)
class FakeWorker:
    script: Script
    path: Path
    options: dict[str, Any]
    pid: int | None = 1

    def asynchronous(self) -> AsyncModel:
        return AsyncModel(self)

    def close(self) -> None:
        self.pid = None

    def start(self, call: ModelCall, put: ReplyCallback) -> _Handle:
        self.script.asked.append(call)
        ticket = _Handle(self.script)
        threading.Thread(target=self._answer, args=(call, put, ticket), daemon=True).start()
        return ticket

    def _answer(self, call: ModelCall, put: ReplyCallback, ticket: _Handle) -> None:
        match call:
            case Describe():
                put(self.script.fail(self.options) or self._info())
            case Tokenize():
                put(Tokens(tuple(call.text.encode())))
            case Embed():
                put(Outputs(np.ones((len(call.texts), 4), np.float32)))
            case Generate():
                self._say(call, put, ticket)
            case _:
                put(String("text"))

    def _info(self) -> Info:
        context = self.options.get("context") or self.script.context
        return Info(
            path="",
            context=context,
            vocab_size=256,
            chat_template=None,
            load_seconds=0.0,
            memory=MEMORY,
            engine=self.options.get("engine") or "native",
        )

    def _say(self, call: Generate, put: ReplyCallback, ticket: _Handle) -> None:
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
                prompt_tokens=len(call.prompt),
                cached_tokens=2,
                generated_tokens=len(self.script.pieces),
                dropped_tokens=0,
                load_seconds=0.0,
                prefill_seconds=0.1,
                decode_seconds=0.2,
            )
        )
