"""Answers calls on a model in this process, from threads of its own: the near end of a `Channel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError
from chaski.runner.engine.outputs import Outputs
from chaski.runner.generation.output_sequences import embeddings
from chaski.runner.service.base_channel import ActiveCall, BaseChannel
from chaski.runner.service.engine_thread import EngineThread
from chaski.runner.service.messages import (
    Chat,
    Describe,
    Embed,
    Generate,
    Info,
    ModelCall,
    ModelReply,
    Tokenize,
)

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["EngineChannel", "describe"]


class EngineChannel(BaseChannel[ActiveCall]):
    """The `BaseChannel` of a loaded model. Close it before the model."""

    def __init__(self, model: LLM, flush: Callable[[], None] = lambda: None) -> None:
        super().__init__(flush, ActiveCall)
        self._model = model
        self._driver = EngineThread(model.engine, flush)
        # One thread, so that who comes first is computed first.
        self._thread = ThreadPoolExecutor(1, "chaski-desk")

    def close(self) -> None:
        """End the threads; calls that are not answered yet end with an error."""
        self._driver.close()
        self._thread.shutdown()

    def _threads(self, call: ModelCall) -> ThreadPoolExecutor:
        return self._thread

    def _write(self, call: Generate | Chat, task: ActiveCall) -> None:
        prompts = self._model.prompts
        if isinstance(call, Generate):
            sequence = prompts.generation(call.prompt, call.options, call.images)
        else:
            sequence = prompts.chat(call.messages, call.tools, call.options, call.images)
        self._driver.follow(sequence, task, task.put)

    def _embed(self, call: Embed, task: ActiveCall) -> None:
        sequences = self._model.prompts.embeddings(call.texts, call.truncate)
        rows = _Rows(len(sequences), call.normalize, task)
        for index, pooled in enumerate(sequences):
            self._driver.follow(pooled, task, partial(rows.put, index))

    def _encode(self, call: Tokenize) -> Iterable[int]:
        return self._model.tokenize(call.text, call.add_special, call.parse_special, call.images)

    def _decode(self, token_ids: Iterable[int]) -> str:
        return self._model.detokenize(token_ids)

    def _describe(self, call: Describe) -> Info:
        if call.wait_loaded:
            self._model.wait_loaded()
        return describe(self._model)


class _Rows:
    """Collects the vectors of several texts into one reply. Called by one thread at a time."""

    def __init__(self, count: int, normalize: bool, task: ActiveCall) -> None:
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._count = count
        self._normalize = normalize
        self._task = task

    def put(self, index: int, reply: ModelReply | Exception) -> None:
        if isinstance(reply, Exception):
            self._task.cancel()
            self._task.put(reply)
            return
        assert isinstance(reply, Outputs), "texts become vectors"
        self._rows[index] = reply.rows
        if len(self._rows) == self._count:
            vectors = np.concatenate([self._rows[index] for index in range(self._count)])
            self._task.put(_outputs(vectors, self._normalize))


def _outputs(vectors: npt.NDArray[np.float32], normalize: bool) -> Outputs | ModelError:
    try:
        return Outputs(embeddings(vectors, normalize))
    except ModelError as error:
        return error


def describe(model: LLM) -> Info:
    """What there is to say about a loaded model."""
    return Info(
        path=str(model.path),
        context=model.context,
        vocab_size=model.vocab_size,
        chat_template=model.chat_template,
        load_seconds=model.load_seconds,
        memory=model.memory(),
        has_vision=model.has_vision,
    )
