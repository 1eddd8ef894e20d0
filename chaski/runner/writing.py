"""From conversations, texts and options to tokens that fit into a context, whatever engine computes them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.pooling import Pooling
from chaski.runner.conversation import shortened
from chaski.runner.generation import Shift
from chaski.runner.options import Limits, parse_options
from chaski.runner.stored import Defaults, no_renderer
from chaski.sample import SamplingOptions

if TYPE_CHECKING:
    from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate

__all__ = ["Encoder", "Message", "Wanted", "Writing"]

# An answer without limit and end token ends after this many contexts (as in Ollama).
_ENDLESS_CONTEXTS = 10

_log = logging.getLogger(__name__)

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`."""


class Encoder(Protocol):
    """What is needed of a tokenizer; see `chaski.text.tokenizer.Tokenizer`."""

    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def token(self, token_id: int) -> str: ...


class _Config(Protocol):
    """What is needed of a model's configuration."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def pooling(self) -> Pooling | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An answer that is asked for, checked.

    prompt    ids, at most as many as the context holds
    dropped   tokens that the prompt lost for that
    limit     tokens of the sequence, its prompt included, at which it ends
    shift     what happens when it fills its context before that; None when it cannot
    """

    prompt: list[int]
    dropped: int
    limit: int
    shift: Shift | None
    limits: Limits
    sampling: SamplingOptions


class Writing(ABC):
    """Knows how text goes into one loaded model. Safe to use from several threads."""

    def __init__(self, file: GGUFFile, config: _Config, context: int, defaults: Defaults) -> None:
        self.context = context
        self.defaults = defaults
        self._file = file
        self._name = file.path.name
        self._vocab_size = config.vocab_size
        self._pooling = config.pooling

    @property
    @abstractmethod
    def tokenizer(self) -> Encoder:
        """Makes ids of texts."""

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
        from chaski.text.template.renderers import RENDERERS

        if self.defaults.template:
            return GoTemplate(self.defaults.template)
        renderer = self.defaults.renderer
        source = self.chat_template or RENDERERS.get(renderer)
        if source is not None:
            return ChatTemplate(source, self._spelling("bos"), self._spelling("eos"))
        if renderer:
            raise UnsupportedError(no_renderer(self._name, renderer))
        _log.warning("%s has no chat template: it gets plain text, without roles", self._name)
        return PlainTemplate()

    def continuation(self, prompt: str | Items[int], options: Mapping[str, Any]) -> Wanted:
        """What continues `prompt`. Raises OptionError for one that does not fit, unless `truncate` is set."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._wanted(ids, options)

    def answer(
        self, messages: Items[Message], tools: Items[Mapping[str, Any]] | None, options: Mapping[str, Any]
    ) -> Wanted:
        """What answers a conversation.

        With `truncate` a conversation that does not fit loses its oldest turns first.
        """

        def written(conversation: Items[Message]) -> list[int]:
            return self._with_bos(self.template.render(conversation, tools=tools))

        conversation = self.defaults.conversation(messages)
        ids = whole = written(conversation)
        if len(whole) > self.context and {**self.defaults.options, **options}.get("truncate"):
            ids = written(shortened(conversation, lambda rest: len(written(rest)) <= self.context))
        return self._wanted(ids, options, dropped=len(whole) - len(ids))

    def embeddable(self, texts: Items[str | Items[int]], truncate: bool) -> list[list[int]]:
        """The ids of texts that become vectors."""
        if self._pooling is None:
            raise UnsupportedError(f"{self._name}: this model does not support embeddings")
        if not texts:
            raise OptionError("there is no text to embed; give at least one")
        return [self._embeddable(text, truncate) for text in texts]

    def _embeddable(self, text: str | Items[int], truncate: bool) -> list[int]:
        ids = self._checked(self.tokenizer.encode(text) if isinstance(text, str) else text)
        if truncate:
            return ids[: self.context]
        self._require_fit(len(ids), ", load the model with a larger context or set truncate")
        return ids

    def _wanted(self, ids: list[int], options: Mapping[str, Any], dropped: int = 0) -> Wanted:
        self._require_text()
        limits, sampling = parse_options({**self.defaults.options, **options})
        prompt = self._fitted(self._checked(ids), limits)
        self._require_tokens(sampling.logit_bias)
        return Wanted(
            prompt=prompt,
            dropped=dropped + len(ids) - len(prompt),
            limit=self._limit(len(prompt), limits),
            shift=Shift(self.context, self._num_keep(prompt, limits)) if limits.shift else None,
            limits=limits,
            sampling=sampling,
        )

    def _require_text(self) -> None:
        if self._pooling is not None:
            raise UnsupportedError(f"{self._name}: this model makes embeddings, not text; use embed")

    def _checked(self, token_ids: Items[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise OptionError("the prompt is empty; give at least one token")
        self._require_tokens(ids)
        return ids

    def _require_tokens(self, token_ids: Iterable[int]) -> None:
        wrong = next((token for token in token_ids if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is not among the {self._vocab_size} of the model")

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
