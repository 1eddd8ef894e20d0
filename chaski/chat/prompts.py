"""From conversations, texts and options to tokens that fit into a context, whatever engine computes them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from chaski.chat import arguments
from chaski.chat.arguments import check_roles, string_list
from chaski.chat.defaults import Defaults
from chaski.chat.file_templates import file_templates
from chaski.chat.layout import Prompt, lay_out, unmarked, with_placeholders
from chaski.chat.options import AnswerOptions, parse_options
from chaski.chat.ranking import RANKING_TEMPLATE, checked_template, pair_ids
from chaski.chat.shortening import cut, shortened
from chaski.errors import ContextLengthError, OptionError, TemplateError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.multimodal import Image
from chaski.model.pooling import Pooling
from chaski.sample import SamplingOptions

if TYPE_CHECKING:
    from chaski.chat.formats import ChatFormat

__all__ = ["Message", "Prepared", "PromptBuilder", "TextTokenizer"]

# An answer without limit and end token ends after this many contexts (as in Ollama).
_ENDLESS_CONTEXTS = 10
# As in llama.cpp: until the context is full.
_TO_THE_END = -2
_EMPTY = "the prompt is empty; give at least one token"

_log = logging.getLogger(__name__)

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`.

`images` are a list of bytes of image files, or paths.
"""


class TextTokenizer(Protocol):
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
class Prepared:
    """An answer that is asked for, checked.

    prompt    at most as many tokens as the context holds
    dropped   tokens that the prompt lost for that
    limit     tokens of the sequence, its prompt included, at which it ends
    context   tokens that it may hold at a time
    num_keep  tokens at its beginning that stay when it fills the context before that; None ends it there
    """

    prompt: Prompt
    dropped: int
    limit: int
    context: int
    num_keep: int | None
    limits: AnswerOptions
    sampling: SamplingOptions


class PromptBuilder(ABC):
    """Knows how text goes into one loaded model. Safe to use from several threads."""

    # Whether the rows of an image see each other.
    _is_bidirectional = False

    def __init__(self, file: GGUFFile, config: _Config, context: int, defaults: Defaults) -> None:
        self.context = context
        self.defaults = defaults
        self._file = file
        self._name = file.path.name
        self._vocab_size = config.vocab_size
        self._pooling = config.pooling

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """Makes ids of texts."""

    @property
    def chat_template(self) -> str | None:
        """The template that conversations are written by, in Jinja or Go's language; None without any.

        One that cannot be read is shown all the same.
        """
        try:
            return self.chat_format.source
        except (TemplateError, UnsupportedError):
            return self.defaults.template or file_templates(self._file)[0]

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How conversations are written. Raises TemplateError or UnsupportedError."""
        from chaski.chat.formats import TemplateSources, choose_chat_format
        from chaski.text.parsers.formats import FORMATS

        stored = self.defaults
        # Answers are given as they are, so that a format of another version does no harm.
        parser = stored.parser if stored.parser in FORMATS else ""
        return choose_chat_format(
            TemplateSources.of(
                self._file, self._name, go=stored.template, renderer=stored.renderer, parser=parser
            )
        )

    @cached_property
    def _warned_format(self) -> ChatFormat:
        """The same, with a warning in the log where there is no template."""
        if self.chat_format.source is None:
            _log.warning("%s has no chat template: it gets plain text, without roles", self._name)
        return self.chat_format

    def continuation(
        self, prompt: str | Items[int], options: Mapping[str, Any], images: Items[Image] = ()
    ) -> Prepared:
        """What continues `prompt`, with images at its placeholders or else in front of it.

        Raises OptionError for one that does not fit, unless `truncate` is set.
        """
        return self._prepared(self._laid_out(prompt, images), options)

    def answer(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        images: Items[Image] = (),
    ) -> Prepared:
        """What answers a conversation, which has placeholders for its images.

        With `truncate` a conversation that does not fit loses its oldest turns first.
        """

        chat_format = self._warned_format
        if tools and chat_format.source is not None and "tools" not in chat_format.capabilities:
            raise UnsupportedError(f"{self._name} does not support tools: its chat template leaves them out")

        def written(conversation: Items[Message]) -> Prompt:
            text = chat_format.render(conversation, tools, chat_format.thinking())
            return self._read_text(text, images, self._with_bos)

        check_roles(messages, f"{self.chat_template or ''}{file_templates(self._file)[1] or ''}")
        conversation = self.defaults.conversation(messages)
        prompt = whole = written(conversation)
        if len(whole.tokens) > self.context and {**self.defaults.options, **options}.get("truncate"):
            short = shortened(conversation, lambda rest: len(written(rest).tokens) <= self.context)
            prompt = written(short)
        return self._prepared(prompt, options, dropped=len(whole.tokens) - len(prompt.tokens))

    def _laid_out(self, prompt: str | Items[int], images: Items[Image]) -> Prompt:
        if isinstance(prompt, str):
            text = with_placeholders(prompt, len(images))
            return self._read_text(text, images, self.tokenizer.encode)
        ids = self._checked(prompt, has_rows=bool(images))
        if not images:
            return Prompt(ids)
        if min(ids) < 0:
            return unmarked(ids, images, self._is_bidirectional)
        front = self._read_text(with_placeholders("", len(images)), images, self.tokenizer.encode)
        return front.followed_by(ids[1:] if ids[0] == self.tokenizer.bos_id else ids)

    def _read_text(self, text: str, images: Items[Image], first: Callable[[str], list[int]]) -> Prompt:
        """A text with placeholders; `first` makes ids of its first piece, with BOS."""

        def other(piece: str) -> list[int]:
            return self.tokenizer.encode(piece, add_special=False)

        prompt = lay_out(text, images, first, other, self._is_bidirectional)
        if not prompt.tokens:
            raise OptionError(_EMPTY)
        self._require_tokens(token for token in prompt.tokens if token >= 0)
        return prompt

    def embeddable(self, texts: Items[str | Items[int]], truncate: bool) -> list[list[int]]:
        """The ids of texts that become vectors."""
        if self._pooling is None:
            raise UnsupportedError(f"{self._name}: this model does not support embeddings")
        if not texts:
            raise OptionError("there is no text to embed; give at least one")
        return [self._embeddable(text, truncate) for text in texts]

    def pairs(self, query: str, documents: Items[str], truncate: bool) -> list[list[int]]:
        """The ids of a query with each document, for a model that ranks. Raises UnsupportedError."""
        if self._pooling is not Pooling.RANK:
            raise UnsupportedError(f"{self._name}: this model does not rank documents")
        template = checked_template(self._file.get(RANKING_TEMPLATE, str, None))
        texts = string_list(documents, "documents")
        return [pair_ids(template, query, each, self.tokenizer, self.context, truncate) for each in texts]

    def _embeddable(self, text: str | Items[int], truncate: bool) -> list[int]:
        ids = self._checked(self.tokenizer.encode(text) if isinstance(text, str) else text)
        if truncate and len(ids) > self.context:
            bare = self.tokenizer.encode(text, add_special=False) if isinstance(text, str) else ids
            return cut(ids, bare, self.context)
        self._require_fit(len(ids), ", load the model with a larger context or set truncate")
        return ids

    def _prepared(self, whole: Prompt, options: Mapping[str, Any], dropped: int = 0) -> Prepared:
        self._require_text()
        limits, sampling = parse_options({**self.defaults.options, **options})
        prompt = self._fitted(whole, limits)
        self._require_tokens(sampling.logit_bias)
        self._require_tokens(limits.stop_token_ids)
        return Prepared(
            prompt=prompt,
            dropped=dropped + len(whole.tokens) - len(prompt.tokens),
            limit=self._limit(len(prompt.tokens), limits),
            context=self.context,
            num_keep=self._num_keep(prompt, limits) if _shifts(limits) else None,
            limits=limits,
            sampling=sampling,
        )

    def _require_text(self) -> None:
        if self._pooling is not None:
            raise UnsupportedError(f"{self._name}: this model makes embeddings, not text; use embed")

    def _checked(self, token_ids: Items[int], has_rows: bool = False) -> list[int]:
        """has_rows: ids below 0 stand for rows of images."""
        ids = arguments.token_ids(token_ids)
        if not ids:
            raise OptionError(_EMPTY)
        self._require_tokens(token for token in ids if token >= 0 or not has_rows)
        return ids

    def _require_tokens(self, token_ids: Iterable[int]) -> None:
        wrong = next((token for token in token_ids if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is not among the {self._vocab_size} of the model")

    def _fitted(self, prompt: Prompt, limits: AnswerOptions) -> Prompt:
        """The prompt, shortened after its beginning if it is too long and that is allowed."""
        excess = len(prompt.tokens) - self.context
        if excess <= 0:
            return prompt
        if not limits.truncate:
            self._require_fit(len(prompt.tokens), ", load the model with a larger context or set truncate")
        return prompt.shortened(excess, self._num_keep(prompt, limits))

    def _num_keep(self, prompt: Prompt, limits: AnswerOptions) -> int:
        has_bos = prompt.tokens[0] == self.tokenizer.bos_id
        return min(max(limits.num_keep, has_bos), self.context - 1)

    def _limit(self, prompt_tokens: int, limits: AnswerOptions) -> int:
        """Tokens of prompt and answer at which it ends. The last one needs no room in the context."""
        predict = limits.num_predict if limits.num_predict >= 0 else _ENDLESS_CONTEXTS * self.context
        end = prompt_tokens + predict
        return end if _shifts(limits) else min(end, self.context + 1)

    def _require_fit(self, length: int, advice: str) -> None:
        if length > self.context:
            raise ContextLengthError(
                f"the prompt has {length} tokens, but the context holds {self.context}; shorten it{advice}",
                length,
                self.context,
            )

    def _with_bos(self, text: str) -> list[int]:
        """The ids of a rendered conversation: exactly one BOS if the file asks for it, written or not."""
        opening = self.tokenizer.encode("")[:1]
        ids = self.tokenizer.encode(text, add_special=False)
        needs_bos = opening == [self.tokenizer.bos_id] and ids[:1] != opening
        return opening + ids if needs_bos else ids


def _shifts(limits: AnswerOptions) -> bool:
    """Return whether the answer goes on, by a context shift, where the context is full."""
    return limits.shift and limits.num_predict != _TO_THE_END
