"""The request for a generation: all that is known about it before it runs."""

from __future__ import annotations

from collections.abc import Sequence as Items
from time import perf_counter
from typing import Any, Protocol

from msgspec import Struct

from chaski.chat.events import Done
from chaski.chat.groups import Groups, not_inside, outside
from chaski.chat.image_rows import Images
from chaski.chat.marks import Holds
from chaski.runner.adapters.applied import AppliedAdapters
from chaski.runner.engine.sequence import Sequence
from chaski.runner.receipts.draft import ReceiptDraft
from chaski.runner.speculation.speculator import Draft
from chaski.sample import SamplingOptions
from chaski.sample.grammar import Grammar
from chaski.sample.rules import TokenRules
from chaski.sample.thought_budget import ThoughtBudget

__all__ = ["SHIFT_MULTIPLE", "GenerationRequest", "Shift", "TextDecoder"]

SHIFT_MULTIPLE = 16
"""The number of tokens that a context shift drops is a multiple of this, where it is more than this.

The remaining tokens determine how an answer continues. So this number is the same on every
device; alignments and pages of backends divide it, and tokens stay where a device reads them fastest.
"""


class TextDecoder(Protocol):
    """Turns token ids into text, one at a time."""

    def feed(self, token_id: int) -> str:
        """Return the text that a token completes."""

    def flush(self) -> str:
        """Return the rest of the text at its end."""


class Shift(Struct, frozen=True):
    """The context shift: `num_keep` tokens of a full context stay; about half of the others are dropped."""

    context: int
    num_keep: int

    def dropped(self, groups: Groups = ()) -> range:
        """Return the positions to drop: groups are dropped whole, also one that begins in the kept tokens."""
        count = max((self.context - self.num_keep) // 2, 1)
        count -= count % SHIFT_MULTIPLE if count > SHIFT_MULTIPLE else 0
        return range(not_inside(self.num_keep, groups), outside(self.num_keep + count, groups))


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """A prompt to compute, how to continue it, and when to end.

    read_tokens     tokens of the prompt that an encoder reads; 0 if the prompt is in the sequence
    groups          positions of the prompt that are computed together
    images          its rows of images
    cache_salt      only prompts with the same salt reuse its cells
    may_store       its prefix may be kept on disk
    holds           first tokens of the prompt that are held for a time
    adapters        the LoRA adapters that it is computed with
    limit           tokens of the sequence, its prompt included, at which it ends
    shift           what a full context drops before that; None where the context cannot fill up
    context         tokens that a sequence may hold
    max_proposed    tokens that may be proposed and computed ahead, at a time
    draft           what proposes them; None proposes n-grams of the text itself
    written         ids that the answer is known to begin with; they are proposed before all others
    grammar         restricts the tokens that may come; nothing is proposed with one
    thoughts        ends thoughts in time; None if they have no limit
    rules           the tokens that its options rule out
    end_ids         tokens that end it
    shown_ends      those of them whose text is part of the answer
    stop            texts that end it, after its first `rules.min_tokens` tokens
    keeps_stop      they are part of the answer
    prompt_logprobs number of top log-probabilities for each token of the prompt; None for no scores at all
    decoder         makes the text; None if no reader needs it
    receipt         draft of the answer's receipt; None if it gets none
    dropped_tokens  number of tokens that the prompt lost to fit into the context
    load_seconds    time that the model took to load, for the report at the end
    """

    prompt: Items[int]
    read_tokens: int = 0
    groups: Groups = ()
    images: Images = ()
    cache_salt: str = ""
    may_store: bool = True
    holds: Holds = ()
    adapters: AppliedAdapters | None = None
    limit: int
    context: int = 0
    shift: Shift | None = None
    sampling: SamplingOptions
    max_proposed: int = 0
    draft: Draft | None = None
    written: Items[int] = ()
    grammar: Grammar | None = None
    thoughts: ThoughtBudget | None = None
    rules: TokenRules | None = None
    end_ids: frozenset[int] = frozenset()
    shown_ends: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    keeps_stop: bool = False
    prompt_logprobs: int | None = None
    decoder: TextDecoder | None = None
    receipt: ReceiptDraft | None = None
    dropped_tokens: int = 0
    load_seconds: float = 0.0

    def report(self, sequence: Sequence, times: tuple[float, float], **others: Any) -> Done:
        """Return the end of an answer that `sequence` computed, and that ends now.

        times: when the sequence started, and when its prompt was computed, as of `time.perf_counter`.
        others: the fields of `Done` that depend on the answer.
        """
        started, prefilled = times
        restored = sequence.restored
        return Done(
            prompt_tokens=self.read_tokens or len(self.prompt),
            cached_tokens=sequence.num_cached,
            memory_tokens=restored.memory,
            disk_tokens=restored.disk,
            saved_seconds=restored.saved_seconds,
            dropped_tokens=self.dropped_tokens,
            load_seconds=self.load_seconds,
            prefill_seconds=prefilled - started,
            decode_seconds=perf_counter() - prefilled,
            **others,
        )
