"""A loaded model as its users see it: text in, text out, or tokens in, logits out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Sequence as Items
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from chaski.errors import ChaskiError, OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.backend import Backend, Memory
from chaski.model.registry import ModelConfig
from chaski.runner.answer import Answer, collect
from chaski.runner.conversation import shortened
from chaski.runner.engine import Engine
from chaski.runner.events import Done, Event, Outputs
from chaski.runner.generation import Generation, Request, Shift
from chaski.runner.options import GenerateOptions, Limits, parse_options
from chaski.runner.readout import EveryOutput, PooledOutput, normalized
from chaski.runner.sequence import Sequence
from chaski.runner.stored import Defaults
from chaski.sample.grammar import Grammar, GrammarCompiler, Spelling

if TYPE_CHECKING:
    from chaski.runner.asynchronous import AsyncModel
    from chaski.runner.service import Service
    from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate
    from chaski.text.tokenizer import Tokenizer

__all__ = ["LLM", "Answer"]

# An answer without limit and end token ends after this many contexts (as in Ollama).
_ENDLESS_CONTEXTS = 10

_log = logging.getLogger(__name__)

EventStream: TypeAlias = Generator[Event, None, None]
"""`Text` as it is made, at last one `Done`. Closing it ends the answer."""

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`."""


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
    ) -> None:
        self.defaults = defaults or Defaults()
        self.context = context
        self.vocab_size = config.vocab_size
        self.pooling = config.pooling
        self.load_seconds = load_seconds
        self.engine = engine
        self._file = file
        self._backend = backend
        self._opening = threading.Lock()
        self._service: Service | None = None

    @property
    def path(self) -> Path:
        """The file that it was loaded from."""
        return self._file.path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, made when text is first needed."""
        from chaski.text.tokenizer import load_tokenizer

        return load_tokenizer(self._file.metadata)

    @property
    def chat_template(self) -> str | None:
        """How a conversation is written: in Go's language by the store, else in Jinja by the file.

        None when neither says.
        """
        return self.defaults.template or self._file.get("tokenizer.chat_template", str, None)

    @cached_property
    def template(self) -> ChatTemplate | GoTemplate | PlainTemplate:
        """The chat template, ready to render; for a file without one, plain text and a warning in the log."""
        from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate

        if self.defaults.template:
            return GoTemplate(self.defaults.template)
        if self.chat_template is None:
            _log.warning("%s has no chat template: it gets plain text, without roles", self.path.name)
            return PlainTemplate()
        return ChatTemplate(self.chat_template, self._spelling("bos"), self._spelling("eos"))

    def logits(self, token_ids: Items[int]) -> npt.NDArray[np.float32]:
        """The logits after each token of a fresh sequence -> (len(token_ids), vocab_size), a copy."""
        self._require_text()
        ids = self._checked(token_ids)
        self._require_fit(len(ids), "; load the model with a larger context")
        sequence = EveryOutput(ids)
        self.engine.submit(sequence)
        return self._outputs(sequence)

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text, with BOS if the file asks for it.

        `parse_special` reads the spelling of control tokens as those tokens.
        """
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """The text of ids; control tokens are left out."""
        return self.tokenizer.decode(token_ids)

    def generate(self, prompt: str | Items[int], **options: Unpack[GenerateOptions]) -> Answer:
        """Continue `prompt`: a text, taken as it is with BOS before it where the file asks for it, or ids.

        Raises OptionError for a prompt that does not fit, unless `truncate` is set.
        """
        return collect(self.stream(prompt, **options))

    def stream(self, prompt: str | Items[int], **options: Unpack[GenerateOptions]) -> EventStream:
        """`generate` in pieces, as they are made."""
        return self._events(self.prepare(prompt, options))

    def chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answer a conversation, written with the file's own template.

        What the model's `defaults` say goes before it.
        """
        return collect(self.stream_chat(messages, tools, **options))

    def stream_chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> EventStream:
        """`chat` in pieces, as they are made."""
        return self._events(self.prepare_chat(messages, tools, options))

    def asynchronous(self) -> AsyncModel:
        """The same model for event loops: `async for event in model.asynchronous().stream(prompt)`."""
        from chaski.runner.asynchronous import AsyncModel
        from chaski.runner.service import Service

        with self._opening:
            if self._service is None:
                self._service = Service(self)
        return AsyncModel(self._service)

    def prepare(self, prompt: str | Items[int], options: Mapping[str, Any]) -> Sequence:
        """The sequence that continues `prompt`, to be submitted to `engine`."""
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return self._sequence(ids, options)

    def prepare_chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> Sequence:
        """The sequence that answers a conversation, to be submitted to `engine`.

        With `truncate` a conversation that does not fit loses its oldest turns first.
        """

        def written(conversation: Items[Message]) -> list[int]:
            return self._with_bos(self.template.render(conversation, tools=tools))

        conversation = self.defaults.conversation(messages)
        ids = whole = written(conversation)
        if len(whole) > self.context and {**self.defaults.options, **options}.get("truncate"):
            ids = written(shortened(conversation, lambda rest: len(written(rest)) <= self.context))
        return self._sequence(ids, options, dropped=len(whole) - len(ids))

    def prepare_embed(self, texts: Items[str | Items[int]], truncate: bool) -> Items[Sequence]:
        """A sequence for each text, to be submitted to `engine`."""
        if self.pooling is None:
            raise UnsupportedError(f"{self.path.name}: this model does not support embeddings")
        if not texts:
            raise OptionError("there is no text to embed; give at least one")
        return [PooledOutput(self._embeddable(text, truncate), self.pooling) for text in texts]

    def embed(
        self, texts: str | Items[str | Items[int]], *, truncate: bool = False, normalize: bool = True
    ) -> npt.NDArray[np.float32]:
        """One vector a text (or list of ids) -> (len(texts), size), of length 1 each with `normalize`.

        Texts are computed together, `parallel` at a time. `truncate` cuts off the end of a text that does not
        fit into the context. Raises UnsupportedError for a model that makes text.
        """
        sequences = self.prepare_embed([texts] if isinstance(texts, str) else texts, truncate)
        for sequence in sequences:
            self.engine.submit(sequence)
        try:
            vectors = np.concatenate([self._outputs(sequence) for sequence in sequences])
        finally:
            for sequence in sequences:
                sequence.cancel()
        return normalized(vectors) if normalize else vectors

    def memory(self) -> Memory:
        """The bytes that the model holds."""
        return self._backend.memory()

    def close(self) -> None:
        """Release memory and threads. The model must not be used any more."""
        if self._service is not None:
            self._service.close()
        self.engine.close()
        self._backend.close()
        self._file.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _events(self, sequence: Sequence) -> EventStream:
        self.engine.submit(sequence)
        try:
            while True:
                self.engine.wait(sequence)
                event = sequence.events.popleft()
                if isinstance(event, ChaskiError):
                    raise event
                assert not isinstance(event, Outputs)
                yield event
                if isinstance(event, Done):
                    return
        finally:
            sequence.cancel()

    def _outputs(self, sequence: Sequence) -> npt.NDArray[np.float32]:
        """The result of a sequence that makes no text."""
        self.engine.wait(sequence)
        event = sequence.events.popleft()
        assert isinstance(event, Outputs)
        return event.rows

    def _embeddable(self, text: str | Items[int], truncate: bool) -> list[int]:
        ids = self._checked(self.tokenize(text) if isinstance(text, str) else text)
        if truncate:
            return ids[: self.context]
        self._require_fit(len(ids), ", load the model with a larger context or set truncate")
        return ids

    def _require_text(self) -> None:
        if self.pooling is not None:
            raise UnsupportedError(f"{self.path.name}: this model makes embeddings, not text; use embed")

    def _sequence(self, ids: list[int], options: Mapping[str, Any], dropped: int = 0) -> Generation:
        self._require_text()
        limits, sampling = parse_options({**self.defaults.options, **options})
        prompt = self._fitted(self._checked(ids), limits)
        shift = Shift(self.context, self._num_keep(prompt, limits)) if limits.shift else None
        return Generation(
            Request(
                prompt=prompt,
                limit=self._limit(len(prompt), limits),
                grammar=self._grammar(limits),
                context=self.context,
                shift=shift,
                max_guesses=limits.draft_num_predict if self.engine.can_guess else 0,
                sampling=sampling,
                end_ids=self.tokenizer.eos_ids,
                stop=limits.stop,
                decoder=self.tokenizer.stream(),
                dropped_tokens=dropped + len(ids) - len(prompt),
                load_seconds=self.load_seconds,
            )
        )

    def _grammar(self, limits: Limits) -> Grammar | None:
        return None if limits.format is None else self._grammars.compile(limits.format, limits.format_after)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        tokenizer = self.tokenizer
        spelling = Spelling(
            tokens=[tokenizer.token_bytes(token_id, special=True) for token_id in range(tokenizer.size)],
            control_ids=tokenizer.control_ids(),
            end_ids=sorted(tokenizer.eos_ids),
            encode=lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
        )
        return GrammarCompiler(spelling, self.vocab_size)

    def _checked(self, token_ids: Items[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise OptionError("the prompt is empty; give at least one token")
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is not among the {self.vocab_size} of the model")
        return ids

    def _fitted(self, ids: list[int], limits: Limits) -> list[int]:
        """The prompt, shortened after its beginning if it is too long and that is allowed."""
        excess = len(ids) - self.context
        if excess <= 0:
            return ids
        if not limits.truncate:
            self._require_fit(len(ids), ", load the model with a larger context or set truncate")
        keep = self._num_keep(ids, limits)
        return ids[:keep] + ids[keep + excess :]

    def _num_keep(self, ids: list[int], limits: Limits) -> int:
        return min(max(limits.num_keep, ids[0] == self.tokenizer.bos_id), self.context - 1)

    def _limit(self, prompt_tokens: int, limits: Limits) -> int:
        """Tokens of prompt and answer at which it ends. The last one needs no room in the context."""
        predict = limits.num_predict if limits.num_predict >= 0 else _ENDLESS_CONTEXTS * self.context
        end = prompt_tokens + predict
        return end if limits.shift else min(end, self.context + 1)

    def _require_fit(self, length: int, advice: str) -> None:
        if length > self.context:
            raise OptionError(
                f"the prompt has {length} tokens, but the context holds {self.context}; shorten it{advice}"
            )

    def _with_bos(self, text: str) -> list[int]:
        """The ids of a rendered conversation: exactly one BOS if the file asks for it, written or not."""
        opening = self.tokenizer.encode("")[:1]
        ids = self.tokenizer.encode(text, add_special=False)
        needs_bos = opening == [self.tokenizer.bos_id] and ids[:1] != opening
        return opening + ids if needs_bos else ids

    def _spelling(self, role: str) -> str:
        """A special token as templates write it; empty when the file names none."""
        token_id = self._file.get(f"tokenizer.ggml.{role}_token_id", int, None)
        return "" if token_id is None else self.tokenizer.token(token_id)
