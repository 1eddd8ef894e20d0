"""Answers calls on a model in this process, from threads of its own: the near end of a `Channel`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.runner.driver import Driver, Task
from chaski.runner.events import Outputs
from chaski.runner.messages import (
    Call,
    Chat,
    Describe,
    Detokenize,
    Embed,
    Generate,
    Info,
    Put,
    Reply,
    String,
    Tokenize,
    Tokens,
)
from chaski.runner.readout import normalized

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["Service", "describe"]


class Service:
    """A `Channel` to a loaded model. Close it before the model.

    `flush` is called when replies were given out, once for those that came together.
    """

    def __init__(self, model: LLM, flush: Callable[[], None] = lambda: None) -> None:
        self._model = model
        self._flush = flush
        self._driver = Driver(model.engine, flush)
        # One thread, so that who comes first is computed first.
        self._desk = ThreadPoolExecutor(1, "chaski-desk")

    def start(self, call: Call, put: Put) -> Task:
        """Begin to answer a call; replies come from other threads."""
        task = Task(put)
        self._desk.submit(self._handle, call, task)
        return task

    def close(self) -> None:
        """End the threads; calls that are not answered yet end with an error."""
        self._driver.close()
        self._desk.shutdown()

    def _handle(self, call: Call, task: Task) -> None:
        if task.is_cancelled:
            return
        try:
            self._answer(call, task)
        except Exception as error:
            task.put(error)
        self._flush()

    def _answer(self, call: Call, task: Task) -> None:
        model = self._model
        match call:
            case Generate():
                self._driver.follow(
                    model.prompts.generation(call.prompt, call.options, call.images), task, task.put
                )
            case Chat():
                sequence = model.prompts.chat(call.messages, call.tools, call.options, call.images)
                self._driver.follow(sequence, task, task.put)
            case Embed():
                sequences = model.prompts.embeddings(call.texts, call.truncate)
                rows = _Rows(len(sequences), call.normalize, task)
                for index, pooled in enumerate(sequences):
                    self._driver.follow(pooled, task, partial(rows.put, index))
            case Tokenize():
                ids = model.tokenize(call.text, call.add_special, call.parse_special, call.images)
                task.put(Tokens(tuple(ids)))
            case Detokenize():
                task.put(String(model.detokenize(call.token_ids)))
            case Describe():
                if call.settled:
                    model.settle()
                task.put(describe(model))


class _Rows:
    """Collects the vectors of several texts into one reply. Called by one thread at a time."""

    def __init__(self, count: int, normalize: bool, task: Task) -> None:
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._count = count
        self._normalize = normalize
        self._task = task

    def put(self, index: int, reply: Reply | Exception) -> None:
        if isinstance(reply, Exception):
            self._task.cancel()
            self._task.put(reply)
            return
        assert isinstance(reply, Outputs), "texts become vectors"
        self._rows[index] = reply.rows
        if len(self._rows) == self._count:
            vectors = np.concatenate([self._rows[index] for index in range(self._count)])
            self._task.put(Outputs(normalized(vectors) if self._normalize else vectors))


def describe(model: LLM) -> Info:
    """What there is to say about a loaded model."""
    return Info(
        path=str(model.path),
        context=model.context,
        vocab_size=model.vocab_size,
        chat_template=model.chat_template,
        load_seconds=model.load_seconds,
        memory=model.memory(),
        sees_images=model.sees_images,
    )
