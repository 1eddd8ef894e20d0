"""Building of sequences for our own engine from requests: tokens, limits, grammars."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Items
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.adapter_choices import AdapterChoice
from chaski.chat.defaults import Defaults
from chaski.chat.images import ImageSource
from chaski.chat.layout import Prompt
from chaski.chat.options import AnswerOptions, parse_options
from chaski.chat.prompts import Prepared, PromptBuilder
from chaski.chat.ranking import RANKING_TEMPLATE
from chaski.errors import AdapterNotFoundError, OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.denoising import read_denoising
from chaski.model.multimodal import MultimodalProcessor, TextEncoder
from chaski.model.pooling import Pooling
from chaski.model.registry import ModelConfig
from chaski.receipts.receipt import ModelPart, Receipt
from chaski.runner.adapters.adapter_set import AdapterSet
from chaski.runner.adapters.applied import AppliedAdapters
from chaski.runner.beams import BeamSearch
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.denoised import DenoisedAnswer
from chaski.runner.generation.denoising_options import require_denoisable, schedule
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.output_sequences import (
    EmbeddingSequence,
    LogitsSequence,
    PromptSequence,
    StreamedLogits,
)
from chaski.runner.generation.replay import Replay
from chaski.runner.generation.request import GenerationRequest, Shift
from chaski.runner.generation.token_rules import token_rules
from chaski.runner.receipts.draft import receipt_draft
from chaski.runner.speculation.speculator import Draft
from chaski.sample.grammar import Grammar, GrammarCompiler, GrammarVocabulary
from chaski.sample.rules import TokenRules
from chaski.sample.thought_budget import ThoughtBudget, ends_of_thought, without_answer
from chaski.store.file_digest import file_digest

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["LoadedBits", "LoadedModel", "SequenceBuilder"]


class LoadedBits(Struct, frozen=True):
    """What determines the bits of answers apart from files and options: the rule, and settings of loading."""

    rule: str
    kv_type: str
    is_flash: bool


class LoadedModel(Struct, frozen=True):
    """What requests need of a model that is loaded, apart from what computes it.

    file          its GGUF file
    config        the sizes of its network
    context       tokens that a sequence may hold
    context_reason  why, in words; empty where nothing more can be said
    max_context   the longest context that the model can be loaded with; more tokens give poor text
    grows         memory for keys and values is taken when tokens use it
    load_seconds  how long loading took
    bits          what determines the bits of its answers
    defaults      those of the stored model
    vision        the encoder of its images; None if it does not see
    text_encoder  the encoder of its prompts; None if the prompt and the answer are one text
    adapters      the LoRA adapters that requests may name; None if it takes none
    tokenizer     the file's, if it was read already; otherwise the first text reads it
    """

    file: GGUFFile
    config: ModelConfig
    context: int
    load_seconds: float
    defaults: Defaults
    vision: MultimodalProcessor | None = None
    text_encoder: TextEncoder | None = None
    adapters: AdapterSet | None = None
    tokenizer: Tokenizer | None = None
    context_reason: str = ""
    max_context: int = 0
    grows: bool = False
    bits: LoadedBits | None = None


class SequenceBuilder(PromptBuilder):
    """Makes the sequences of one loaded model. Safe to use from several threads.

    `most_proposed`: the largest number of tokens that a sequence may propose at once. `draft` proposes them;
    None for none.
    """

    def __init__(self, model: LoadedModel, most_proposed: int, draft: Draft | None) -> None:
        super().__init__(
            model.file, model.config, model.context, model.defaults, model.vision, model.max_context
        )
        self._model = model
        self._most_proposed = most_proposed
        self._draft = draft
        self._adapters = model.adapters
        self._compilers: dict[frozenset[int], GrammarCompiler] = {}
        self._text_encoder = model.text_encoder
        self._is_bidirectional = model.vision is not None and model.vision.is_bidirectional
        denoises = model.config.pooling is None and not model.config.is_causal
        self._denoising = read_denoising(model.file) if denoises else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer. Raises TokenizerError for a file without one."""
        if self._model.tokenizer is not None:
            return self._model.tokenizer
        from chaski.text.tokenizer import file_tokenizer

        return file_tokenizer(self._file)

    def outputs(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        adapters: Items[AdapterChoice] = (),
        *,
        max_outputs: int,
    ) -> list[LogitsSequence]:
        """The sequences that give the outputs of every token, `max_outputs` of a batch at most."""
        self._require_text()
        whole = self._laid_out(prompt, self.read_images(images))
        self._require_fit(len(whole.tokens), more="")
        whole = self._encoded(whole)
        applied = self._applied(adapters)
        groups = whole.groups if self._denoising is None else (range(len(whole.tokens)),)
        sequences = LogitsSequence.passes(list(whole.tokens), groups, whole.images, max_outputs)
        for sequence in sequences:
            sequence.adapters = applied
        return sequences

    def streamed(self, ids: Items[int], positions: Items[int]) -> StreamedLogits:
        """The sequence that gives the outputs of some tokens, in the order of their positions."""
        self._require_text()
        if self._denoising is not None:
            raise UnsupportedError(
                f"{self._name}: this model denoises whole answers, so no token follows from those before it; "
                "evaluate another model"
            )
        self._require_fit(len(ids), more="")
        return StreamedLogits(ids, positions)

    def rankings(self, query: str, documents: Items[str], truncate: bool) -> list[EmbeddingSequence]:
        """A sequence for the query with each document."""
        return [self.pooled(ids) for ids in self.pairs(query, documents, truncate)]

    def pooled(self, ids: Items[int]) -> EmbeddingSequence:
        """Return the sequence that makes a vector of ids."""
        assert self._model.config.pooling is not None, "it can be embedded"
        is_causal, pooling = self._model.config.is_causal, self._model.config.pooling
        groups = () if is_causal else (range(len(ids)),)
        compares = pooling is Pooling.RANK and not is_causal and RANKING_TEMPLATE not in self._file.metadata
        second = self.separators.second_text(ids) if compares else None
        return EmbeddingSequence(ids, pooling.of_rows(is_causal), groups, second)

    def generation(self, prepared: Prepared, rank: int = 0, written: Items[int] = ()) -> Sequence:
        """Return the sequence that computes an answer; of a beam search, the `rank`-th one from 0 on.

        `written` are ids that it is known to begin with.
        """
        request = self._request(prepared, written)
        if self._denoising is not None:
            room = self.context - len(request.prompt)
            return DenoisedAnswer(request, schedule(prepared.limits, room), self._denoising)
        if prepared.limits.is_search:
            return BeamSearch(request, prepared.limits, rank)
        return Generation(request)

    def replay(
        self, receipt: Receipt, prompt: Items[int], steps: Items[int]
    ) -> tuple[Replay, GenerationRequest]:
        """Return the sequence that computes the answer of a receipt again, and its request.

        steps: the steps to compare, in order. Raises OptionError, SamplingError, AdapterNotFoundError, or
        UnsupportedError for options or a model that no receipt is for.
        """
        self._require_text()
        if self._denoising is not None or self._text_encoder is not None:
            raise UnsupportedError(f"{self._name}: answers of such a model have no receipts")
        choices = self._adapters_of(receipt)
        limits, sampling = parse_options({**receipt.options, "seed": int(receipt.seed), "adapter": choices})
        limit = len(prompt) + limits.num_predict
        self._require_fit(len(prompt) + max(len(receipt.output) - 1, 0), more="")
        prepared = Prepared(
            prompt=Prompt(list(prompt)),
            dropped=0,
            limit=limit,
            context=self.context,
            num_keep=None,
            limits=limits,
            sampling=sampling,
            ends=frozenset(receipt.ends),
        )
        request = self._request(prepared)
        return Replay(request, receipt, steps, self.rule), request

    def _adapters_of(self, receipt: Receipt) -> list[AdapterChoice]:
        """Return the choices of a receipt's adapters. Raises AdapterNotFoundError."""
        infos = () if self._adapters is None or not receipt.adapters else self._adapters.infos()
        names = {info.digest: info.name for info in infos}
        missing = [part.digest for part in receipt.adapters if part.digest not in names]
        if missing:
            raise AdapterNotFoundError(
                f"the receipt names an adapter with the SHA-256 {missing[0]}, and no such adapter is loaded; "
                "load the model with it"
            )
        return [AdapterChoice(names[part.digest], part.scale) for part in receipt.adapters]

    def model_part(self) -> ModelPart:
        """Return what a receipt says of the model. The first call may read the whole file."""
        bits = self._model.bits
        assert bits is not None, "it is loaded"
        paths = dict.fromkeys(tensor.path for tensor in self._file.tensors.values())
        return ModelPart(
            architecture=self._file.architecture,
            files=tuple(map(file_digest, paths)),
            kv_type=bits.kv_type,
            attention="flash" if bits.is_flash else "plain",
            context=self.context,
        )

    @property
    def depends_on_context(self) -> bool:
        """True if some constants of the model depend on the length of the context."""
        return "rope_factors_long.weight" in self._file.tensors

    @property
    def rule(self) -> str:
        """The rule of the backend."""
        assert self._model.bits is not None, "it is loaded"
        return self._model.bits.rule

    def _request(self, prepared: Prepared, written: Items[int] = ()) -> GenerationRequest:
        """Return the request for a prepared answer."""
        limits = prepared.limits
        stops, keeps_stop = frozenset(limits.stop_token_ids), limits.include_stop_str_in_output
        if limits.prompt_logprobs is not None and prepared.prompt.images:
            raise UnsupportedError("prompt_logprobs is for prompts without images")
        if self._denoising is not None:
            require_denoisable(limits, prepared.sampling)
        ends = self.tokenizer.eos_ids | prepared.ends
        rules = token_rules(limits, self.tokenizer, ends)
        adapters, sampling, draft = self._applied(limits.adapter), prepared.sampling, None
        if limits.receipt is not None:
            if sampling.seed is None:
                sampling = replace(sampling, seed=secrets.randbits(64))
            draft = receipt_draft(prepared, sampling, self.rule, self.model_part(), adapters)
        return GenerationRequest(
            prompt=prepared.prompt.tokens,
            read_tokens=prepared.read_tokens,
            groups=prepared.prompt.groups,
            images=prepared.prompt.images,
            cache_salt=limits.cache_salt,
            may_store=not limits.no_store,
            holds=prepared.holds,
            adapters=adapters,
            limit=prepared.limit,
            grammar=self._grammar(limits, ends),
            thoughts=self._thoughts(limits, rules),
            context=self.context,
            shift=None if prepared.num_keep is None else Shift(self.context, prepared.num_keep),
            max_proposed=min(limits.draft_num_predict, self._most_proposed),
            draft=self._draft,
            written=written,
            sampling=sampling,
            rules=rules,
            end_ids=ends | stops,
            shown_ends=stops - ends if limits.include_stop_str_in_output else frozenset(),
            stop=limits.stop,
            keeps_stop=keeps_stop,
            prompt_logprobs=limits.prompt_logprobs,
            decoder=self.tokenizer.stream(special=limits.special),
            receipt=draft,
            dropped_tokens=prepared.dropped,
            load_seconds=self._model.load_seconds,
        )

    def prompt(self, prepared: Prepared) -> PromptSequence:
        """Return the sequence that computes a prompt and nothing after it.

        Raises UnsupportedError for a model that denoises, which keeps nothing of a prompt.
        """
        if self._denoising is not None:
            raise UnsupportedError(
                f"{self._name}: this model denoises whole answers, so a prompt alone leaves nothing to keep"
            )
        prompt, limits = prepared.prompt, prepared.limits
        sequence = PromptSequence(prompt.tokens, prompt.groups, prompt.images, limits.cache_salt)
        sequence.may_store, sequence.adapters = not limits.no_store, self._applied(limits.adapter)
        return sequence

    def _applied(self, choices: Items[AdapterChoice]) -> AppliedAdapters | None:
        if not choices:
            return None
        if self._adapters is None:
            raise UnsupportedError("this model takes no adapters")
        return self._adapters.apply(choices)

    def _grammar(self, limits: AnswerOptions, ends: frozenset[int]) -> Grammar | None:
        constraint = limits.constraint
        return None if constraint is None else self._grammars(ends).compile(constraint, limits.format_thought)

    def _thoughts(self, limits: AnswerOptions, rules: TokenRules) -> ThoughtBudget | None:
        prefix, budget = limits.format_thought, limits.reasoning_budget
        if prefix is None or budget < 0:
            return None
        encode = partial(self.tokenizer.encode, add_special=False, continues=True)
        for end in ends_of_thought(prefix, limits.constraint is not None):
            end_ids = encode(end)
            if b"".join(map(rules.spell, end_ids)) == end.encode(errors="replace"):
                said = encode(limits.reasoning_budget_message)
                first = [encode(without_answer(end, prefix))] if prefix.may_call else []
                ends = [[*said, *ids] for ids in (*first, end_ids)]
                return ThoughtBudget(prefix, budget, ends, self._controls, rules.spell)
        raise OptionError(
            f"option reasoning_budget is {budget}, but the model's tokens cannot spell the end of a thought, "
            f"{prefix.closing!r:.80}; leave the option out"
        )

    @cached_property
    def _controls(self) -> Mapping[str, int]:
        """Tokens that no text is made of, by their spelling."""
        return {self.tokenizer.token(token_id): token_id for token_id in self.tokenizer.control_ids()}

    def _grammars(self, ends: frozenset[int]) -> GrammarCompiler:
        """Return the compiler for answers that these tokens end."""
        if ends not in self._compilers:
            self._compilers.setdefault(
                ends, GrammarCompiler(self._spelling(ends), self._model.config.vocab_size)
            )
        return self._compilers[ends]

    def _spelling(self, ends: frozenset[int]) -> GrammarVocabulary:
        tokenizer = self.tokenizer
        return GrammarVocabulary(
            tokens=[tokenizer.token_bytes(token_id, special=True) for token_id in range(tokenizer.size)],
            control_ids=tokenizer.control_ids(),
            end_ids=sorted(ends),
            encode=partial(tokenizer.encode, add_special=False, parse_special=False, continues=True),
        )
