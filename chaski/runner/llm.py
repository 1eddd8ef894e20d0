"""A loaded model as its users see it: text in, text out, or tokens in, logits out."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer, collect
from chaski.chat.arguments import text_list
from chaski.chat.defaults import Defaults
from chaski.chat.events import Done, Event
from chaski.chat.images import ImageSource, take_images
from chaski.chat.options import GenerateOptions
from chaski.chat.prompts import Message
from chaski.errors import ChaskiError
from chaski.formats.gguf import GGUFFile
from chaski.ml.backend import Backend, Memory
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.registry import ModelConfig
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.output_sequences import embeddings
from chaski.runner.generation.sequence_builder import Prompts
from chaski.runner.speculation.draft_resources import DraftResources

if TYPE_CHECKING:
    from chaski.runner.service.asynchronous import AsyncModel
    from chaski.runner.service.engine_channel import EngineChannel
    from chaski.text.tokenizer import Tokenizer

__all__ = ["LLM", "Answer"]

EventStream: TypeAlias = Generator[Event, None, None]
"""`Text` as it is made, at last one `Done`. Closing it ends the answer."""


class LLM:
    """A model in memory. Made by `chaski.load`; use it as a context manager or call `close`.

    Safe to use from several threads: their requests are computed together, `parallel` at a time.
    """

    def __init__(
        self,
        file: GGUFFile,
        backend: Backend,
        engine: Engine,
        context: int,
        config: ModelConfig,
        load_seconds: float,
        defaults: Defaults | None = None,
        vision: MultimodalProcessor | None = None,
        draft: DraftResources | None = None,
    ) -> None:
        self.prompts = Prompts(
            file,
            config,
            context,
            defaults or Defaults(),
            engine.can_speculate,
            load_seconds,
            vision,
            engine.draft,
        )
        self.has_vision = vision is not None
        self.context = context
        self.vocab_size = config.vocab_size
        self.pooling = config.pooling
        self.load_seconds = load_seconds
        self.engine = engine
        self._file = file
        self._backend = backend
        self._draft = draft
        self._opening = threading.Lock()
        self._service: EngineChannel | None = None

    @property
    def path(self) -> Path:
        """The file that it was loaded from."""
        return self._file.path

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer."""
        return self.prompts.tokenizer

    @property
    def chat_template(self) -> str | None:
        """How a conversation is written, in Jinja or Go's language; None when nothing says so."""
        return self.prompts.chat_template

    @property
    def defaults(self) -> Defaults:
        """What a stored model brings with it: its system message, its options, its template."""
        return self.prompts.defaults

    def logits(self, prompt: str | Items[int], images: Items[ImageSource] = ()) -> npt.NDArray[np.float32]:
        """The logits after each token of a fresh sequence -> (tokens, vocab_size), a copy.

        `prompt` and `images` are as for `generate`; a row of an image is a token.
        """
        sequence = self.prompts.outputs(prompt, images)
        (rows,) = self._outputs([sequence])
        return rows

    def tokenize(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = True,
        images: Items[ImageSource] = (),
    ) -> list[int]:
        """The ids of a text, with BOS if the file asks for it.

        `parse_special` reads the spelling of control tokens as those tokens. `images` come as in `generate`;
        a row of image k is the id -1 - k, and such ids with their images are a prompt again.
        """
        if images:
            return self.prompts.tokens(text, images, add_special)
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """The text of ids; control tokens are left out."""
        return self.tokenizer.decode(token_ids)

    def generate(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Continue `prompt`: a text, taken as it is with BOS before it where the file asks for it, or ids.

        `images` (bytes of image files, or paths) come where the text says `[img-0]`, `[img-1]`, ...; those
        that it does not place come in front. Raises OptionError for a prompt that does not fit, unless
        `truncate` is set, and UnsupportedError for images if the model does not see.
        """
        return collect(self.stream(prompt, images, **options))

    def stream(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        **options: Unpack[GenerateOptions],
    ) -> EventStream:
        """`generate` in pieces, as they are made."""
        return self._events(self.prompts.generation(prompt, options, images))

    def chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answer a conversation, written with the file's own template.

        What the model's `defaults` say goes before it. The `images` of a message (a list of bytes or paths)
        come where its text says `[img]`, else in front of it.
        """
        return collect(self.stream_chat(messages, tools, **options))

    def stream_chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> EventStream:
        """`chat` in pieces, as they are made."""
        turns, images = take_images(messages)
        return self._events(self.prompts.chat(turns, tools, options, images))

    def asynchronous(self) -> AsyncModel:
        """The same model for event loops: `async for event in model.asynchronous().stream(prompt)`."""
        from chaski.runner.service.asynchronous import AsyncModel
        from chaski.runner.service.engine_channel import EngineChannel

        self.engine.check_fork()
        with self._opening:
            if self._service is None:
                self._service = EngineChannel(self)
        return AsyncModel(self._service)

    def embed(
        self, texts: str | Items[str | Items[int]], *, truncate: bool = False, normalize: bool = True
    ) -> npt.NDArray[np.float32]:
        """One vector a text (or list of ids) -> (len(texts), size), of length 1 each with `normalize`.

        Texts are computed together, `parallel` at a time. `truncate` cuts off the end of a text that does not
        fit into the context. Raises UnsupportedError for a model that makes text, and ModelError
        for vectors that are not all finite numbers.
        """
        sequences = self.prompts.embeddings(text_list(texts), truncate)
        return embeddings(np.concatenate(self._outputs(sequences)), normalize)

    def memory(self) -> Memory:
        """The bytes that the model holds, and its draft model."""
        own = self._backend.memory()
        return own if self._draft is None else own + self._draft.memory()

    def wait_loaded(self) -> None:
        """Wait until all weights are in the memory that kernels like best: the first answer does not.

        Raises ModelError where the model's file cannot be read any more, and ForkError.
        """
        self.engine.check_fork()
        self._backend.wait_loaded()
        if self._draft is not None:
            self._draft.wait_loaded()

    def close(self) -> None:
        """Release memory and threads. The model must not be used any more.

        In a fork of the process that loaded it nothing is released before that process ends.
        """
        if self.engine.is_forked:
            return
        if self._service is not None:
            self._service.close()
        self.engine.close()
        self._backend.close()
        self._file.close()
        if self._draft is not None:
            self._draft.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _events(self, sequence: Sequence) -> EventStream:
        try:
            self.engine.submit(sequence)
            while True:
                event = self._next(sequence)
                assert not isinstance(event, Outputs)
                yield event
                if isinstance(event, Done):
                    return
        except BaseException:
            # Here and below: a Ctrl-C that comes just when one of them begins does not get past both.
            sequence.cancel()
            raise
        finally:
            sequence.cancel()

    def _outputs(self, sequences: Items[Sequence]) -> list[npt.NDArray[np.float32]]:
        """The results of sequences that make no text."""
        try:
            for sequence in sequences:
                self.engine.submit(sequence)
            events = [self._next(sequence) for sequence in sequences]
        except BaseException:
            _cancel(sequences)
            raise
        finally:
            _cancel(sequences)
        return [event.rows for event in events if isinstance(event, Outputs)]

    def _next(self, sequence: Sequence) -> Event | Outputs:
        """Return the next event or outputs of a sequence. Raises the error that ended it."""
        self.engine.wait(sequence)
        event = sequence.events.popleft()
        if isinstance(event, ChaskiError):
            raise event
        return event


def _cancel(sequences: Items[Sequence]) -> None:
    for sequence in sequences:
        sequence.cancel()
