"""`ModelInfo`: the properties of a model that its files give, without loading it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chaski.chat.defaults import Defaults
from chaski.chat.ranking import RANKING_TEMPLATE, checked_template
from chaski.errors import ChaskiError
from chaski.runner.loading.engine_choice import usual_engine
from chaski.store.model import StoredModel

if TYPE_CHECKING:
    from chaski.chat.formats import ChatFormat
    from chaski.text.tokenizer import Tokenizer

__all__ = ["ModelInfo"]


class ModelInfo:
    """The properties of a model that its files give, read once. Safe to use from several threads.

    stored: the stored part of its chat format. sources: all sources of the chat format.
    fill_in_tokens: the texts of the tokens before, behind and in place of the inserted text, or None.
    projector: the file of its image encoder, if that is separate. has_vision: whether it has an encoder.
    """

    def __init__(self, model: StoredModel) -> None:
        from chaski.chat.file_templates import fill_in_tokens
        from chaski.chat.sources import StoredFormat, TemplateSources
        from chaski.model.dialects import open_model
        from chaski.model.pooling import Pooling, pooling_number
        from chaski.model.registry import ARCHITECTURES, takes_projector
        from chaski.runner.loading.files import stored_projector

        self.model = model
        with open_model(model.path) as file:
            self.architecture = file.architecture
            self.trained_context = file.get(f"{self.architecture}.context_length", int, 0)
            self.embedding_length = file.get(f"{self.architecture}.embedding_length", int, 0)
            pooling = pooling_number(file)
            self.makes_text = pooling == 0
            self.is_ranking = pooling == Pooling.RANK
            self.is_embedding = not (self.makes_text or self.is_ranking)
            self._is_causal = file.get(f"{self.architecture}.attention.causal", bool, True)
            self._ranking_template = file.get(RANKING_TEMPLATE, str, None)
            self.stored = StoredFormat(
                model.name.short if model.name else "",
                model.template,
                model.config.renderer,
                model.config.parser,
            )
            self.sources = TemplateSources.of(file, self.stored)
            self.fill_in_tokens = fill_in_tokens(file)
            self.bos_id = file.get("tokenizer.ggml.bos_token_id", int, None)
            sees = self.architecture in ARCHITECTURES and takes_projector(file)
            projector = stored_projector(model, file) if sees else None
            self.projector = projector.path if projector is not None else None
            has_encoder = f"{self.architecture}.vision.block_count" in file.metadata
            self.has_vision = self.projector is not None or (sees and has_encoder)
            if projector is not None:
                projector.close()

    @cached_property
    def defaults(self) -> Defaults:
        """The defaults of the model. Raises UnsupportedError, OptionError."""
        return Defaults.of(self.model)

    @cached_property
    def engine(self) -> str:
        """The engine that computes the model if a request does not name one."""
        from chaski.model.dialects import open_model

        with open_model(self.model.path) as file:
            return usual_engine(file, self.defaults.engine)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The chat format of the model. Raises TemplateError."""
        from chaski.chat.choice import choose_chat_format

        return choose_chat_format(self.sources)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, for the texts of single tokens; the worker encodes prompts."""
        from chaski.model.dialects import open_model
        from chaski.text.tokenizer import load_tokenizer

        return load_tokenizer(open_model(self.model.path).metadata)

    @property
    def ranking_template(self) -> str | None:
        """The template of a query and a document for a model that ranks, None for encoders that do without.

        Raises UnsupportedError.
        """
        return checked_template(self._ranking_template, self._is_causal)

    @cached_property
    def capabilities(self) -> list[str]:
        """Ollama's words for what the model can do."""
        if not self.makes_text:
            return ["rerank"] if self.is_ranking else ["embedding"]
        found = ["completion", "vision"] if self.has_vision else ["completion"]
        try:
            words = self.chat_format.capabilities
            fills_in = ["insert"] if self.fill_in_tokens and "insert" not in words else []
            return [*found, *words, *fills_in]
        except ChaskiError:
            return found
