"""From what users ask for to sequences that the engine computes: templates, tokens, limits, grammars."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.pooling import Pooling
from chaski.model.registry import ModelConfig
from chaski.runner.conversation import shortened
from chaski.runner.generation import Generation, Request, Shift
from chaski.runner.options import Limits, parse_options
from chaski.runner.readout import EveryOutput, PooledOutput
from chaski.runner.stored import Defaults
from chaski.sample.grammar import Grammar, GrammarCompiler, Spelling

if TYPE_CHECKING:
    from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate
    from chaski.text.tokenizer import Tokenizer

__all__ = ["Message", "Prompts"]

# An answer without limit and end token ends after this many contexts (as in Ollama).
_ENDLESS_CONTEXTS = 10

_log = logging.getLogger(__name__)

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`."""


class Prompts:
    """Knows the text side of one loaded model. Safe to use from several threads."""

    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        context: int,
        defaults: Defaults,
        can_guess: bool,
        load_seconds: float,
    ) -> None:
        self.context = context
        self.defaults = defaults
        self._file = file
        self._name = file.path.name
        self._config = config
        self._can_guess = can_guess
        self._load_seconds = load_seconds

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
            _log.warning("%s has no chat template: it gets plain text, without roles", self._name)
            return PlainTemplate()
        return ChatTemplate(self.chat_template, self._spelling("bos"), self._spelling("eos"))

    def generation(self, prompt: str | Items[int], options: Mapping[str, Any]) -> Generation:
        """The sequence that continues `prompt`."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._sequence(ids, options)

    def chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> Generation:
        """The sequence that answers a conversation.

        With `truncate` a conversation that does not fit loses its oldest turns first.
        """

        def written(conversation: Items[Message]) -> list[int]:
            return self._with_bos(self.template.render(conversation, tools=tools))

        conversation = self.defaults.conversation(messages)
        ids = whole = written(conversation)
        if len(whole) > self.context and {**self.defaults.options, **options}.get("truncate"):
            ids = written(shortened(conversation, lambda rest: len(written(rest)) <= self.context))
        return self._sequence(ids, options, dropped=len(whole) - len(ids))

    def outputs(self, token_ids: Items[int]) -> EveryOutput:
        """The sequence that gives the outputs of every token."""
        self._require_text()
        ids = self._checked(token_ids)
        self._require_fit(len(ids), "; load the model with a larger context")
        return EveryOutput(ids)

    def embeddings(self, texts: Items[str | Items[int]], truncate: bool) -> list[PooledOutput]:
        """A sequence for each text."""
        if self._config.pooling is None:
            raise UnsupportedError(f"{self._name}: this model does not support embeddings")
        if not texts:
            raise OptionError("there is no text to embed; give at least one")
        return [self._pooled(self._embeddable(text, truncate), self._config.pooling) for text in texts]

    def _pooled(self, ids: list[int], pooling: Pooling) -> PooledOutput:
        return PooledOutput(ids, pooling, () if self._config.is_causal else (range(len(ids)),))

    def _embeddable(self, text: str | Items[int], truncate: bool) -> list[int]:
        ids = self._checked(self.tokenizer.encode(text) if isinstance(text, str) else text)
        if truncate:
            return ids[: self.context]
        self._require_fit(len(ids), ", load the model with a larger context or set truncate")
        return ids

    def _require_text(self) -> None:
        if self._config.pooling is not None:
            raise UnsupportedError(f"{self._name}: this model makes embeddings, not text; use embed")

    def _sequence(self, ids: list[int], options: Mapping[str, Any], dropped: int = 0) -> Generation:
        self._require_text()
        limits, sampling = parse_options({**self.defaults.options, **options})
        prompt = self._fitted(self._checked(ids), limits)
        self._require_tokens(sampling.logit_bias)
        shift = Shift(self.context, self._num_keep(prompt, limits)) if limits.shift else None
        return Generation(
            Request(
                prompt=prompt,
                limit=self._limit(len(prompt), limits),
                grammar=self._grammar(limits),
                context=self.context,
                shift=shift,
                max_guesses=limits.draft_num_predict if self._can_guess else 0,
                sampling=sampling,
                end_ids=self.tokenizer.eos_ids,
                stop=limits.stop,
                decoder=self.tokenizer.stream(special=limits.special),
                dropped_tokens=dropped + len(ids) - len(prompt),
                load_seconds=self._load_seconds,
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
        return GrammarCompiler(spelling, self._config.vocab_size)

    def _checked(self, token_ids: Items[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise OptionError("the prompt is empty; give at least one token")
        self._require_tokens(ids)
        return ids

    def _require_tokens(self, token_ids: Iterable[int]) -> None:
        wrong = next((token for token in token_ids if not 0 <= token < self._config.vocab_size), None)
        if wrong is not None:
            raise OptionError(f"token id {wrong} is not among the {self._config.vocab_size} of the model")

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
