"""The near end of a `Channel`: it answers calls on a model in this process, with its own threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaski.chat.requests import Chat, Embed, Rank
from chaski.errors import ChaskiError
from chaski.ml.backend import Memory
from chaski.runner.adapters.adapter_calls import AdapterCall, answered
from chaski.runner.adapters.adapter_set import AdapterInfo, AdapterSet
from chaski.runner.channels.base_channel import ActiveCall, BaseChannel
from chaski.runner.channels.cache_picture import CachePicture, cache_picture
from chaski.runner.channels.engine_thread import EngineThread
from chaski.runner.channels.messages import Answerable, Describe, Info, ModelCall, ReplyOrError, Tokenize
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.outputs import Outputs
from chaski.runner.generation.output_sequences import embeddings
from chaski.runner.generation.sequence_builder import SequenceBuilder
from chaski.runner.prefix.block_calls import Blocks
from chaski.runner.states.keeping import answered_state
from chaski.runner.states.state_calls import SavedState, StateCall
from chaski.same_bits import UsualFloats

__all__ = ["EngineChannel", "describe"]


class ServedModel(Protocol):
    """The part of `chaski.runner.llm.LLM` that the channel needs."""

    prompts: SequenceBuilder
    engine: Engine
    context: int
    context_reason: str
    max_context: int
    vocab_size: int
    load_seconds: float
    has_vision: bool
    adapter_set: AdapterSet | None

    @property
    def path(self) -> Path: ...

    @property
    def unused_bytes(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...

    def detokenize(self, token_ids: Iterable[int]) -> str: ...

    def memory(self) -> Memory: ...

    def wait_loaded(self) -> None: ...


class EngineChannel(BaseChannel[ActiveCall]):
    """The `BaseChannel` of a loaded model. Close it before its model."""

    def __init__(self, model: ServedModel, flush: Callable[[], None] = lambda: None) -> None:
        super().__init__(flush, ActiveCall)
        self._model = model
        self._driver = EngineThread(model.engine, flush)
        # A single thread prepares requests in the order of arrival. The initializer sets the usual rounding
        # mode.
        usual = UsualFloats().__enter__
        self._thread = ThreadPoolExecutor(1, "chaski-desk", initializer=usual)
        # State files are large, so they have a separate thread.
        self._state_thread = ThreadPoolExecutor(1, "chaski-states", initializer=usual)

    def close(self) -> None:
        """End the threads; unanswered calls end with ClosedError."""
        super().close()
        self._driver.close()
        self._thread.shutdown()
        self._state_thread.shutdown()

    def __repr__(self) -> str:
        return repr(self._model)

    def _threads(self, call: ModelCall) -> ThreadPoolExecutor:
        return self._state_thread if isinstance(call, StateCall) else self._thread

    def _write(self, call: Answerable, task: ActiveCall) -> None:
        prompts = self._model.prompts
        prepared = prompts.prepare(call, prompts.read_images(call.images))
        sequence = prompts.generation(prepared, call.draw, call.written)
        self._driver.follow(sequence, task, task.parsed(prepared))

    def _embed(self, call: Embed | Rank, task: ActiveCall) -> None:
        prompts = self._model.prompts
        texts = prompts.vector_texts(call)
        rows = _Rows(texts, call, task)
        for index, ids in enumerate(texts):
            self._driver.follow(prompts.pooled(ids), task, partial(rows.put, index))

    def _encode_chat(self, chat: Chat) -> Iterable[int]:
        return self._model.prompts.chat_tokens(chat)

    def _render_chat(self, chat: Chat) -> str:
        return self._model.prompts.conversation_text(chat)

    def _encode(self, call: Tokenize) -> Iterable[int]:
        return self._model.prompts.tokens(call.text, call.images, call.add_special, call.parse_special)

    def _decode(self, token_ids: Iterable[int]) -> str:
        return self._model.detokenize(token_ids)

    def _adapters(self, call: AdapterCall) -> Iterable[AdapterInfo]:
        return answered(self._model.adapter_set, call)

    def _state(self, call: StateCall) -> SavedState:
        return answered_state(self._model.engine, self._model.prompts, call)

    def _picture(self) -> CachePicture:
        return cache_picture(self._model.engine)

    def _describe(self, call: Describe) -> Info:
        if call.wait_loaded:
            self._model.wait_loaded()
        return describe(self._model)

    def _live(self) -> LiveSequences:
        return self._model.engine.live()

    def _blocks_of(self, request: Answerable) -> Blocks:
        prompts, tiers = self._model.prompts, self._model.engine.tiers
        prompt = prompts.prompt(prompts.prepare(request, prompts.read_images(request.images)))
        if tiers is None:
            return Blocks((), len(prompt.tokens))
        return tiers.named(prompt.tokens, prompt.cache_salt, prompt.adapter_key)

    def _blocks(self) -> Blocks:
        tiers = self._model.engine.tiers
        return Blocks((), 0) if tiers is None else tiers.held()


class _Rows:
    """Collects the vectors of several texts into one reply. Used by one thread at a time."""

    def __init__(self, texts: Sequence[Sequence[int]], call: Embed | Rank, task: ActiveCall) -> None:
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        self._count = len(texts)
        self._num_tokens = sum(map(len, texts))
        self._call = call
        self._task = task

    def put(self, index: int, reply: ReplyOrError) -> None:
        if isinstance(reply, Exception):
            self._task.cancel()
            self._task.put(reply)
            return
        assert isinstance(reply, Outputs), "texts become vectors"
        self._rows[index] = reply.rows
        if len(self._rows) == self._count:
            vectors = np.concatenate([self._rows[index] for index in range(self._count)])
            self._task.put(_outputs(vectors, self._num_tokens, self._call))


def _outputs(vectors: npt.NDArray[np.float32], num_tokens: int, call: Embed | Rank) -> Outputs | ChaskiError:
    try:
        return Outputs(embeddings(vectors, call), num_tokens)
    except ChaskiError as error:
        return error


def describe(model: ServedModel) -> Info:
    """Return the description of a loaded model."""
    tiers = model.engine.tiers
    return Info(
        path=str(model.path),
        context=model.context,
        context_reason=model.context_reason,
        max_context=model.max_context,
        parallel=model.engine.parallel,
        unused_bytes=model.unused_bytes,
        vocab_size=model.vocab_size,
        chat_template=model.chat_template,
        load_seconds=model.load_seconds,
        memory=model.memory(),
        has_vision=model.has_vision,
        capabilities=model.capabilities,
        prefixes=() if tiers is None else tiers.uses(),
    )
