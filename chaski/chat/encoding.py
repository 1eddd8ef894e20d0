"""Encoding of texts and ids as prompts, with checks that they fit a model and its context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import cached_property, partial
from typing import Protocol

from chaski.chat import arguments
from chaski.chat.image_rows import ImageRun, entries
from chaski.chat.images import ImageReader, ImageSource, RecentImages
from chaski.chat.layout import (
    Prompt,
    lay_out,
    marked,
    num_placed_rows,
    typed_placeholders,
    unmarked,
    with_placeholders,
)
from chaski.chat.ranking import RANKING_TEMPLATE, Separators, checked_template, pair_ids
from chaski.chat.requests import Embed, Rank
from chaski.chat.shortening import cut
from chaski.chat.tokenizing import TextTokenizer
from chaski.errors import ContextLengthError, OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.multimodal import Image
from chaski.model.pooling import Pooling

__all__ = ["PromptEncoder", "TokenConfig"]

_OR_CUT = ", or set truncate"
_EMPTY = "the prompt is empty; give at least one token"


class TokenConfig(Protocol):
    """The fields of a model's configuration that encoding reads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def pooling(self) -> Pooling | None: ...

    @property
    def is_causal(self) -> bool: ...


class TextReader(Protocol):
    """The part of an encoder of prompts that makes its inputs."""

    def read_text(self, token_ids: Items[int]) -> Image: ...


class PromptEncoder(ABC):
    """Makes the tokens of one loaded model. Safe to use from several threads."""

    # True if the rows of an image attend to each other.
    _is_bidirectional = False
    # The encoder of prompts, for a model whose decoder reads them by cross-attention.
    _text_encoder: TextReader | None = None

    def __init__(
        self,
        file: GGUFFile,
        config: TokenConfig,
        context: int,
        vision: ImageReader | None = None,
        max_context: int = 0,
    ) -> None:
        """`max_context`: the longest context that the model was made for; 0 if unknown."""
        self.context = context
        self.max_context = max_context
        self._vision = vision
        self._recent = RecentImages()
        self._file = file
        self._name = file.path.name
        self._vocab_size = config.vocab_size
        self._pooling = config.pooling
        self._is_causal = config.is_causal

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the model's file."""

    def read_images(self, images: Items[ImageSource]) -> list[Image]:
        """Return images as the encoder takes them. Raises UnsupportedError where the model has none."""
        if not images:
            return []
        if self._vision is None:
            raise UnsupportedError(
                f"{self._name}: this model does not see images; send text only, or use a model that does"
            )
        return [self._recent.read(image, self._vision) for image in images]

    def tokens(
        self, text: str, images: Items[ImageSource], add_special: bool, parse_special: bool = True
    ) -> list[int]:
        """Return the ids of a text with images; rows of image k are -1 - k, as they may be in a prompt."""
        if not images:
            return self.tokenizer.encode(text, add_special, parse_special)
        seen = self.read_images(images)
        first = partial(self.tokenizer.encode, add_special=add_special)
        return marked(
            self._read_text(with_placeholders(typed_placeholders(text), len(seen)), seen, first), seen
        )

    def vector_texts(self, request: Embed | Rank) -> list[list[int]]:
        """Return the ids of each text that becomes a vector. Raises UnsupportedError or OptionError.

        A caller that can reload the model gets the error of the longest text, and none is cut.
        """
        truncate = request.truncate and not request.can_reload
        if isinstance(request, Embed):
            return self._all_embeddable(request.texts, truncate)
        return self.pairs(request.query, request.documents, truncate)

    def _all_embeddable(self, texts: Items[str | Items[int]], truncate: bool) -> list[list[int]]:
        """Return the ids of texts that become vectors."""
        if self._pooling is None:
            raise UnsupportedError(f"{self._name}: this model does not support embeddings")
        if not texts:
            raise OptionError("there is no text to embed; give at least one")
        return _each([partial(self._embeddable, text, truncate) for text in texts])

    def pairs(self, query: str, documents: Items[str], truncate: bool) -> list[list[int]]:
        """Return the ids of a query with each document, for a model that ranks. Raises UnsupportedError."""
        if self._pooling is not Pooling.RANK:
            raise UnsupportedError(f"{self._name}: this model does not rank documents")
        template = checked_template(self._file.get(RANKING_TEMPLATE, str, None), self._is_causal)
        texts = arguments.string_list(documents, "documents")
        end = self.tokenizer, self.context, truncate
        make = self.separators.ids if template is None else partial(pair_ids, template)
        try:
            return _each([partial(make, query, each, *end) for each in texts])
        except ContextLengthError as error:
            raise self._too_long("query and document have", error.length) from None

    @cached_property
    def separators(self) -> Separators:
        """The tokens around the two texts that an encoder compares."""
        return Separators.of(self._file, self.tokenizer)

    def _laid_out(self, prompt: str | Items[int], images: Items[Image]) -> Prompt:
        if isinstance(prompt, str):
            text = with_placeholders(typed_placeholders(prompt), len(images))
            return self._read_text(text, images, self.tokenizer.encode)
        ids = self._checked(prompt, has_rows=bool(images))
        if not images:
            return Prompt(ids)
        if min(ids) < 0:
            return unmarked(ids, images, self._is_bidirectional)
        front = self._read_text(with_placeholders("", len(images)), images, self.tokenizer.encode)
        return front.followed_by(ids[1:] if ids[0] == self.tokenizer.bos_id else ids)

    def _read_text(self, text: str, images: Items[Image], first: Callable[[str], list[int]]) -> Prompt:
        """Read a text with placeholders; `first` makes ids of its first piece, with BOS.

        Raises OptionError if repeated placeholders need more rows than the context holds.
        """
        rows = num_placed_rows(text, images) if images else 0
        if rows > self.context and rows > sum(image.num_rows for image in images):
            raise OptionError(
                f"the prompt repeats placeholders of images, whose rows are {rows} tokens, but the context "
                f"holds {self.context}; name each image once, such as [img-0]"
            )
        prompt = lay_out(text, images, first, self._encode, self._is_bidirectional)
        if not prompt.tokens:
            raise OptionError(_EMPTY)
        self._require_tokens(token for token in prompt.tokens if token >= 0)
        return prompt

    def _encoded(self, prompt: Prompt) -> Prompt:
        """Return the prompt as the model takes it: one token stands for a prompt that an encoder reads."""
        if self._text_encoder is None:
            return prompt
        run = ImageRun(range(1), self._text_encoder.read_text(prompt.tokens))
        return Prompt(entries(run), (run,))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)

    def _with_bos(self, text: str) -> list[int]:
        """Return the ids of a rendered text: exactly one BOS if the file asks for it, written or not."""
        opening = self.tokenizer.encode("")[:1]
        ids = self._encode(text)
        needs_bos = opening == [self.tokenizer.bos_id] and ids[:1] != opening
        if self._text_encoder is not None:  # it reads a whole text, with its end
            ids = ids + [each for each in self.tokenizer.encode("") if each != self.tokenizer.bos_id]
        return opening + ids if needs_bos else ids

    def _embeddable(self, text: str | Items[int], truncate: bool) -> list[int]:
        ids = self._checked(self.tokenizer.encode(text) if isinstance(text, str) else text)
        if truncate and len(ids) > self.context:
            bare = self._encode(text) if isinstance(text, str) else ids
            return cut(ids, bare, self.context)
        self._require_fit(len(ids))
        return ids

    def _checked(self, token_ids: Items[int], has_rows: bool = False) -> list[int]:
        """Return ids, checked; with `has_rows` ids below 0 represent rows of images."""
        ids = arguments.token_ids(token_ids)
        if not ids:
            raise OptionError(_EMPTY)
        self._require_tokens(token for token in ids if token >= 0 or not has_rows)
        return ids

    def _require_text(self) -> None:
        if self._pooling is not None:
            raise UnsupportedError(f"{self._name}: this model makes embeddings, not text; use embed")

    def _require_tokens(self, token_ids: Iterable[int]) -> None:
        wrong = next((token for token in token_ids if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise OptionError(
                f"token id {wrong} is not in the model's vocabulary of {self._vocab_size} tokens"
            )

    def _require_fit(self, length: int, more: str = _OR_CUT) -> None:
        """Raise ContextLengthError for a prompt that does not fit. `more`: what else helps, in words."""
        if length > self.context:
            raise self._too_long("the prompt has", length, more)

    def _too_long(self, what: str, length: int, more: str = _OR_CUT) -> ContextLengthError:
        """Return the error for a prompt that does not fit, with what helps."""
        sizes = length, self.context, self.max_context
        way_out = ContextLengthError("", *sizes).way_out("context, num_ctx or OLLAMA_CONTEXT_LENGTH")
        message = f"{what} {length} tokens, but the context holds {self.context}; {way_out}{more}"
        return ContextLengthError(message, *sizes)


def _each(makers: Items[Callable[[], list[int]]]) -> list[list[int]]:
    """Return the ids that each function makes. Raises the error of the longest text that does not fit."""
    found, worst = [], None
    for make in makers:
        try:
            found.append(make())
        except ContextLengthError as error:
            worst = error if worst is None or error.length > worst.length else worst
    if worst is not None:
        raise worst
    return found
