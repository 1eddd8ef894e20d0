"""A loaded model as its users see it: text in, text out, or tokens in, logits out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer, collect
from chaski.chat.answer_parser import AnswerParser
from chaski.chat.arguments import string_list, text_list, token_ids
from chaski.chat.defaults import Defaults
from chaski.chat.formats import Message
from chaski.chat.images import ImageSource
from chaski.chat.options import GenerateOptions
from chaski.chat.ranking import Ranked, ranked
from chaski.chat.requests import Chat, Embed, Generate, detached
from chaski.chat.several import ProgressOption, options_of_each, request_list
from chaski.formats.gguf import GGUFFile
from chaski.ml.backend import Backend, Memory
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.registry import ModelConfig
from chaski.runner.engine.engine import Engine
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.output_sequences import embeddings, relevance
from chaski.runner.generation.sequence_builder import SequenceBuilder
from chaski.runner.results import EventStream, answers_of, events_of, outputs_of
from chaski.runner.service.messages import Answerable
from chaski.runner.speculation.draft_resources import DraftResources

if TYPE_CHECKING:
    from chaski.runner.service.asynchronous import AsyncModel
    from chaski.runner.service.engine_channel import EngineChannel
    from chaski.text.tokenizer import Tokenizer

__all__ = ["LLM", "Answer"]


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
        self.prompts = SequenceBuilder(
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
        """The chat template, in Jinja or Go's template language; None if the model has none."""
        return self.prompts.chat_template

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Ollama's words for what conversations with it may have: tools, thinking, insert."""
        return self.prompts.capabilities

    @property
    def defaults(self) -> Defaults:
        """Defaults of the stored model: its system message, its options, its template."""
        return self.prompts.defaults

    def logits(self, prompt: str | Items[int], images: Items[ImageSource] = ()) -> npt.NDArray[np.float32]:
        """The logits after each token of a fresh sequence -> (tokens, vocab_size), a copy.

        `prompt` and `images` are as for `generate`; a row of an image is a token.
        """
        sequence = self.prompts.outputs(prompt, images)
        (rows,) = outputs_of(self.engine, [sequence])
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
        ids = prompt if isinstance(prompt, str) else tuple(token_ids(prompt))
        return self._answer(Generate(ids, dict(options)), images)

    def chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageSource] = (),
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answer a conversation, written with the model's own template and taken apart by its format.

        What the model's `defaults` say goes before it. The `images` of a message (a list of bytes or paths)
        come where its text says `[img]`, else in front of it; `images` here belong to the last message.
        `think` is whether, or how much, the model thinks; one that can does, unless it is told otherwise.
        """
        return collect(self.stream_chat(messages, tools, think=think, images=images, **options))

    def stream_chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageSource] = (),
        **options: Unpack[GenerateOptions],
    ) -> EventStream:
        """`chat` in pieces, as they are made: `Text`, `Thinking` and `ToolCall`."""
        turns, sources = detached(messages, images)
        return self._answer(Chat(tuple(turns), tuple(tools or ()), dict(options), think=think), sources)

    def generate_many(
        self,
        prompts: Items[str | Items[int]],
        *,
        n: int = 1,
        progress: ProgressOption = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Answer]:
        """Continue several prompts, `parallel` at a time -> their answers in order, `n` for each prompt.

        Each answer is the one that `generate` gives alone. With a `seed`, the answers to one prompt have that
        seed and the ones after it. `progress=True` draws a bar; a function is called with the done share.
        Every prompt is checked before anything is computed, and an error on the way ends all of them.
        """
        each = options_of_each(options, n, self.defaults.options.get("seed"))
        found = request_list(prompts, "prompts")
        asked = [x if isinstance(x, str) else tuple(token_ids(x)) for x in found]
        begun = [self._begun(Generate(x, dict(chosen))) for x in asked for chosen in each]
        return answers_of(self.engine, begun, progress)

    def chat_many(
        self,
        conversations: Items[Items[Message]],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        n: int = 1,
        progress: ProgressOption = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Answer]:
        """Answer several conversations, as `generate_many` continues prompts."""
        each = options_of_each(options, n, self.defaults.options.get("seed"))
        taken = [detached(messages) for messages in request_list(conversations, "conversations")]
        given = tuple(tools or ())
        begun = [
            self._begun(Chat(tuple(turns), given, dict(chosen)), images)
            for turns, images in taken
            for chosen in each
        ]
        return answers_of(self.engine, begun, progress)

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
        asked = Embed(tuple(text_list(texts)), truncate, normalize)
        sequences = [self.prompts.pooled(ids) for ids in self.prompts.vector_texts(asked)]
        return embeddings(np.concatenate(outputs_of(self.engine, sequences)), normalize)

    def score(self, query: str, documents: Items[str], *, truncate: bool = False) -> npt.NDArray[np.float32]:
        """Relevance of each document to `query`, from 0 to 1 -> (len(documents),) float32.

        `truncate` cuts off the end of a document that does not fit into the context. Raises UnsupportedError
        for a model that does not rank.
        """
        sequences = self.prompts.rankings(query, documents, truncate)
        return relevance(np.concatenate(outputs_of(self.engine, sequences)))

    def rerank(
        self, query: str, documents: Items[str], *, top_n: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """The documents that answer `query` best, the best one first; `top_n` of them, or all.

        Scores are those of `score`; documents that are equally good stay in their order.
        """
        texts = string_list(documents, "documents")
        return ranked(texts, self.score(query, texts, truncate=truncate).tolist())[:top_n]

    def memory(self) -> Memory:
        """The bytes that the model and its draft model hold, on each device and in all."""
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

    def __repr__(self) -> str:
        if not self._file.metadata:
            return "<LLM closed>"
        name = self.defaults.name or self.path.name
        memory = self.memory()
        size = f"{memory.total / 1e9:.2f} GB"
        if len(memory.devices) > 1:
            parts = ", ".join(f"{held.total / 1e9:.2f} on {held.device}" for held in memory.devices)
            size = f"{size}: {parts}"
        return f"<LLM {name}: context {self.context}, parallel {self.engine.parallel}, {size}>"

    def _answer(self, request: Answerable, images: Items[ImageSource] = ()) -> EventStream:
        """Prepare an answer now, and compute it when its events are read."""
        return events_of(self.engine, *self._begun(request, images))

    def _begun(
        self, request: Answerable, images: Items[ImageSource] = ()
    ) -> tuple[Generation, AnswerParser | None]:
        """The sequence of an answer, and what takes the answer apart."""
        prepared = self.prompts.prepare(request, self.prompts.read_images(images))
        return self.prompts.generation(prepared), prepared.parser
