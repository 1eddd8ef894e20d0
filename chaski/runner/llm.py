"""A loaded model as its users see it: text in, text out, or tokens in, logits out."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Items
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaski.chat.adapter_choices import AdapterOption, adapter_choices
from chaski.chat.answer import Answer
from chaski.chat.answer_parser import AnswerParser
from chaski.chat.defaults import Defaults
from chaski.chat.images import ImageSource
from chaski.chat.requests import Embed, Rank
from chaski.chat.several import ProgressOption, Request
from chaski.ml.backend import Backend, DeviceMemory, Memory
from chaski.runner.adapters.adapter_calls import AdapterCall, answered
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.messages import Detokenize, Tokenize
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.output_sequences import embeddings, vectors_or_scores
from chaski.runner.generation.sequence_builder import LoadedModel, SequenceBuilder
from chaski.runner.methods import BlockingMethods
from chaski.runner.results import answers_of, events_of, outputs_of
from chaski.runner.speculation.draft_resources import DraftResources
from chaski.runner.states.keeping import answered_state
from chaski.runner.states.state_calls import SavedState, StateCall
from chaski.runner.streams import EventStream
from chaski.same_bits import UsualFloats

if TYPE_CHECKING:
    from chaski.runner.channels.asynchronous import AsyncModel
    from chaski.runner.channels.engine_channel import EngineChannel
    from chaski.text.tokenizer import Tokenizer

__all__ = ["LLM", "Answer"]


class LLM(BlockingMethods):
    """A model in memory. Made by `chaski.load`; use it as a context manager or call `close`.

    Safe to use from several threads: their requests are computed together, `parallel` at a time. After
    `close`, every call raises ClosedError.
    """

    def __init__(
        self, model: LoadedModel, backend: Backend, engine: Engine, draft: DraftResources | None
    ) -> None:
        self.prompts = SequenceBuilder(model, engine.most_proposed, engine.draft)
        self.adapter_set = model.adapters
        self.has_vision = model.vision is not None
        self.context = model.context
        self.context_reason = model.context_reason
        self.max_context = model.max_context
        self.vocab_size = model.config.vocab_size
        self.pooling = model.config.pooling
        self.load_seconds = model.load_seconds
        self.engine = engine
        self._grows = model.grows
        self._file = model.file
        self._backend = backend
        self._draft = draft
        # The parts to close with the model; the last one is closed first.
        self.closing = ExitStack()
        if draft is not None:
            self.closing.callback(draft.close)
        for part in (model.file, backend, engine):
            self.closing.callback(part.close)
        self._opening = threading.Lock()
        self._service: EngineChannel | None = None

    @property
    def path(self) -> Path:
        """The file that it was loaded from."""
        return self._file.path

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer."""
        self.check_open()
        return self.prompts.tokenizer

    @property
    def chat_template(self) -> str | None:
        """The chat template, in Jinja or Go's template language; None if the model has none."""
        self.check_open()
        return self.prompts.chat_template

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Ollama's words for what conversations with it may have: tools, thinking, insert."""
        self.check_open()
        return self.prompts.capabilities

    @property
    def defaults(self) -> Defaults:
        """Defaults of the stored model: its system message, its options, its template."""
        return self.prompts.defaults

    @UsualFloats()
    def logits(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        *,
        adapter: AdapterOption | None = None,
    ) -> npt.NDArray[np.float32]:
        """The logits after each token of a fresh sequence -> (tokens, vocab_size), a copy.

        `prompt`, `images` and `adapter` are as for `generate`; a row of an image is a token.
        """
        self.check_open()
        choices, most = adapter_choices(adapter), self.engine.max_outputs
        sequences = self.prompts.outputs(prompt, images, choices, max_outputs=most)
        found = outputs_of(self.engine, sequences)
        if len(found) == 1:
            return found[0]
        rows = np.empty((len(sequences[0].tokens), found[0].shape[1]), np.float32)
        for sequence, part in zip(sequences, found, strict=True):
            rows[sequence.positions] = part
        return rows

    @property
    def unused_bytes(self) -> int:
        """Bytes of the host that are reserved for keys and values, and taken when tokens need them."""
        return self.engine.unused_cache_bytes if self._grows else 0

    def asynchronous(self) -> AsyncModel:
        """The same model for event loops: `async for event in model.asynchronous().stream(prompt)`."""
        from chaski.runner.channels.asynchronous import AsyncModel
        from chaski.runner.channels.engine_channel import EngineChannel

        self.engine.check_usable()
        with self._opening:
            if self._service is None:
                self._service = EngineChannel(self)
        return AsyncModel(self._service)

    def memory(self) -> Memory:
        """The bytes that the model, its adapters and its draft model hold, on each device and in all."""
        self.check_open()
        own = self._backend.memory()
        if self.adapter_set is not None:
            held = self.adapter_set.held_bytes.items()
            own += Memory(tuple(DeviceMemory(device, adapters=num_bytes) for device, num_bytes in held))
        return own if self._draft is None else own + self._draft.memory()

    def wait_loaded(self) -> None:
        """Wait until all weights are in the memory that kernels read fastest; the first answer does not wait.

        Raises ModelError where the model's file cannot be read any more, ClosedError and ForkError.
        """
        self.engine.check_usable()
        self._backend.wait_loaded()
        if self._draft is not None:
            self._draft.wait_loaded()

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        self.engine.check_open()

    def close(self) -> None:
        """Release memory and threads. Running and later calls raise ClosedError; closing again does nothing.

        In a fork of the process that loaded it nothing is released before that process ends.
        """
        if self.engine.is_forked:
            return
        if self._service is not None:
            self._service.close()
        self.closing.close()

    def __repr__(self) -> str:
        name = self.defaults.name or self.path.name
        if self.engine.is_closed:
            return f"<LLM {name}: closed>"
        memory = self.memory()
        size = f"{memory.total / 1e9:.2f} GB"
        if len(memory.devices) > 1:
            parts = ", ".join(f"{held.total / 1e9:.2f} on {held.device}" for held in memory.devices)
            size = f"{size}: {parts}"
        return f"<LLM {name}: context {self.context}, parallel {self.engine.parallel}, {size}>"

    def _stream(self, request: Request) -> EventStream:
        """Prepare an answer now, and compute it when its events are read."""
        self.check_open()
        return EventStream(events_of(self.engine, *self._begun(request)), self.check_open)

    def _answers(self, requests: Items[Request], progress: ProgressOption) -> list[Answer]:
        """Prepare all answers before anything is computed."""
        self.check_open()
        begun = []
        for request in requests:
            with request.naming():
                begun.append((request, *self._begun(request)))
        return answers_of(self.engine, begun, progress)

    @UsualFloats()
    def _begun(self, request: Request) -> tuple[Sequence, AnswerParser | None]:
        """Return the sequence of an answer, and the parser of the answer."""
        prepared = self.prompts.prepare(request.call, self.prompts.read_images(request.images))
        sequence = self.prompts.generation(prepared, request.call.draw, request.call.written)
        return sequence, prepared.parser

    @UsualFloats()
    def _array(self, call: Embed | Rank) -> npt.NDArray[np.float32]:
        self.check_open()
        sequences = [self.prompts.pooled(ids) for ids in self.prompts.vector_texts(call)]
        rows = np.concatenate(outputs_of(self.engine, sequences))
        return vectors_or_scores(call, embeddings(rows, call))

    def _adapters(self, call: AdapterCall) -> list[AdapterInfo]:
        self.engine.check_usable()
        return answered(self.adapter_set, call)

    def _state(self, call: StateCall) -> SavedState:
        return answered_state(self.engine, self.prompts, call)

    @UsualFloats()
    def _tokens(self, call: Tokenize, images: Items[ImageSource]) -> list[int]:
        self.check_open()
        if images:
            return self.prompts.tokens(call.text, images, call.add_special)
        return self.tokenizer.encode(call.text, call.add_special, call.parse_special)

    def _text(self, call: Detokenize) -> str:
        return self.tokenizer.decode(call.token_ids)
