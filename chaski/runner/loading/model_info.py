"""`ModelInfo`: the properties of a model that its files give, without loading it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from chaski.chat.defaults import Defaults
from chaski.chat.ranking import RANKING_TEMPLATE, checked_template
from chaski.errors import ChaskiError
from chaski.names import NATIVE
from chaski.runner.loading.engine_choice import EXTRA, is_installed, reason_for_llama_cpp, usual_engine
from chaski.runner.loading.proposals import has_heads, proposals
from chaski.store.model import StoredModel

if TYPE_CHECKING:
    from chaski.chat.formats import ChatFormat
    from chaski.text.tokenizer import Tokenizer

__all__ = ["ModelInfo"]


class ModelInfo:
    """The properties of a model that its files give, read once. Safe to use from several threads.

    stored: the stored part of its chat format. sources: all sources of the chat format.
    fill_in_tokens: the texts of the tokens before, after and in place of the inserted text, or None.
    """

    def __init__(self, model: StoredModel) -> None:
        from chaski.chat.file_templates import fill_in_tokens
        from chaski.chat.sources import StoredFormat, TemplateSources
        from chaski.model.file_dialects import open_model
        from chaski.model.pooling import Pooling, pooling_number
        from chaski.model.registry import ARCHITECTURES, takes_projector

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
            self._has_heads = has_heads(file)
            self.fill_in_tokens = fill_in_tokens(file)
            self.bos_id = file.get("tokenizer.ggml.bos_token_id", int, None)
            self._has_encoder = (
                f"{self.architecture}.vision.block_count" in file.metadata
                and self.architecture in ARCHITECTURES
                and takes_projector(file)
            )

    @cached_property
    def defaults(self) -> Defaults:
        """The defaults of the model. Raises UnsupportedError, OptionError."""
        return Defaults.of(self.model)

    @cached_property
    def engine(self) -> str:
        """The engine that computes the model if a request does not name one."""
        from chaski.model.file_dialects import open_model

        with open_model(self.model.path) as file:
            return usual_engine(file, self.defaults.engine, self._image_projector)

    @cached_property
    def engine_reason(self) -> str:
        """The reason why llama.cpp computes the model, in a sentence; empty if the native engine does."""
        from chaski.model.file_dialects import open_model

        if self.engine == NATIVE:
            return ""
        with open_model(self.model.path) as file:
            return reason_for_llama_cpp(file, self._image_projector)

    def proposals(self, draft: Path | None) -> str:
        """Return what proposes tokens where our engine computes, in words; empty where only the text does."""
        return proposals(self._has_heads, draft)

    def projector(self, engine: str) -> Path | None:
        """Return the file of the image encoder that an engine takes, if it is separate."""
        return self._native_projector if engine == NATIVE else self._image_projector

    def sees(self, engine: str) -> bool:
        """Return whether an engine reads images for the model."""
        return self.projector(engine) is not None or (engine == NATIVE and self._has_encoder)

    @property
    def way_to_see(self) -> str:
        """The command that lets llama.cpp read images where our engine cannot; empty if it would not help."""
        if self._image_projector is None or is_installed() or self.sees(NATIVE):
            return ""
        return f"; llama.cpp may read its images: {EXTRA} adds it as a second engine"

    @cached_property
    def _image_projector(self) -> Path | None:
        from chaski.runner.loading.files import image_projector

        return image_projector(self.model)

    @cached_property
    def _native_projector(self) -> Path | None:
        from chaski.model.file_dialects import open_model
        from chaski.model.registry import ARCHITECTURES
        from chaski.runner.loading.files import stored_projector

        if self.architecture not in ARCHITECTURES:
            return None
        with open_model(self.model.path) as file:
            projector = stored_projector(self.model, file)
        if projector is None:
            return None
        projector.close()
        return projector.path

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The chat format of the model. Raises TemplateError."""
        from chaski.chat.choice import choose_chat_format

        return choose_chat_format(self.sources)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, for the texts of single tokens; the worker encodes prompts."""
        from chaski.model.file_dialects import open_model
        from chaski.text.tokenizer import file_tokenizer

        return file_tokenizer(open_model(self.model.path))

    @property
    def ranking_template(self) -> str | None:
        """The template of a query and a document for a model that ranks, None for encoders that do without.

        Raises UnsupportedError.
        """
        return checked_template(self._ranking_template, self._is_causal)

    @cached_property
    def capabilities(self) -> list[str]:
        """Ollama's words for the capabilities of the model."""
        if not self.makes_text:
            return ["rerank"] if self.is_ranking else ["embedding"]
        found = ["completion"]
        try:
            found += ["vision"] if self.sees(self.engine) else []
            words = self.chat_format.capabilities
            fills_in = ["insert"] if self.fill_in_tokens and "insert" not in words else []
            return [*found, *words, *fills_in]
        except ChaskiError:
            return found
