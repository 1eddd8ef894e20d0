"""Prompts for llama.cpp: written as for the native engine, tokenized by llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from msgspec import Struct

from chaski.chat.conversation import Conversation
from chaski.chat.defaults import Defaults
from chaski.chat.layout import Prompt, prompt_pieces
from chaski.chat.options import AnswerOptions
from chaski.chat.prompts import PromptBuilder
from chaski.chat.requests import Chat
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.multimodal import Image
from chaski.model.pooling import Pooling
from chaski.runner.channels.llamacpp.images import ImagePrompt, PictureReader
from chaski.runner.channels.llamacpp.server import LlamaServer
from chaski.text.tokenizer.vocabulary import Vocabulary

__all__ = ["LlamaPrompts", "PromptConfig"]


class PromptConfig(Struct, frozen=True):
    """The fields of a model's configuration that prompts use."""

    vocab_size: int
    pooling: Pooling | None
    is_causal: bool = True


class LlamaPrompts(PromptBuilder):
    """Makes prompts with llama.cpp's own tokenizer."""

    def __init__(
        self,
        file: GGUFFile,
        config: PromptConfig,
        context: int,
        defaults: Defaults,
        server: LlamaServer,
        vocabulary: Vocabulary,
        max_context: int = 0,
    ) -> None:
        vision = PictureReader(server.image_tokens) if server.has_vision else None
        super().__init__(file, config, context, defaults, vision, max_context)
        self._server = server
        self._vocabulary = vocabulary

    @cached_property
    def tokenizer(self) -> _Encoder:
        """A tokenizer that calls llama.cpp."""
        return _Encoder(self._server, self._vocabulary)

    def _shifts(self, limits: AnswerOptions) -> bool:
        """Return whether the answer continues when the context is full; False if llama.cpp reads images."""
        return self._server.can_shift and super()._shifts(limits)

    def _written(
        self, conversation: Conversation, request: Chat, images: Sequence[Image]
    ) -> tuple[str, Prompt]:
        if images and request.context:
            raise UnsupportedError(
                "the engine llama.cpp does not take images together with the field context; send the "
                "conversation as messages"
            )
        return super()._written(conversation, request, images)

    def _read_text(self, text: str, images: Sequence[Image], first: Callable[[str], list[int]]) -> Prompt:
        prompt = super()._read_text(text, images, first)
        if not prompt.images:
            return prompt
        if prompt.images[-1].positions.stop == len(prompt.tokens):
            raise OptionError("the engine llama.cpp needs text after the last image of a prompt")
        found = prompt_pieces(text, images)
        begin, *others = [piece if isinstance(piece, str) else piece.image for piece in found]
        assert isinstance(begin, str), "the first piece is a text"
        pieces = (self._without_bos(begin, prompt.tokens), *others)
        return ImagePrompt(prompt.tokens, prompt.images, prompt.groups, pieces)

    def _without_bos(self, text: str, token_ids: Sequence[int]) -> str:
        """Return the text without the BOS that llama.cpp puts in front of it."""
        bos_id = self.tokenizer.bos_id
        if bos_id is None or self.tokenizer.encode("")[:1] != [bos_id] or list(token_ids[1:2]) == [bos_id]:
            return text
        return text.removeprefix(self.tokenizer.token(bos_id))


class _Encoder:
    def __init__(self, server: LlamaServer, vocabulary: Vocabulary) -> None:
        self._server = server
        self._vocabulary = vocabulary

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        content = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        body = {"content": content, "add_special": add_special, "parse_special": parse_special}
        return list(self._server.ask("/tokenize", body)["tokens"])

    def token(self, token_id: int) -> str:
        return self._vocabulary.tokens[token_id]
