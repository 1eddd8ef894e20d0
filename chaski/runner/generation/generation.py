"""A generation is a request for text on its way through the engine; it grows by a token at a time."""

from __future__ import annotations

from collections.abc import Sequence as Items
from time import perf_counter

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.chat.events import Done
from chaski.chat.groups import without
from chaski.chat.image_rows import moved_down, place, whole
from chaski.errors import ChaskiError
from chaski.model.output_rows import OutputRow, OutputRows
from chaski.receipts.chain import top_bytes
from chaski.receipts.receipt import End
from chaski.runner.engine.sequence import Counts
from chaski.runner.generation.answer import Answer
from chaski.runner.generation.prompt_scores import PromptScorer
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import Speculator
from chaski.runner.speculation.written import WrittenSpeculator
from chaski.sample import Sampled, Sampler

__all__ = ["Generation"]


class Generation(Answer):
    """A prompt and its answer, which grows by a token at a time."""

    __slots__ = (
        "_allowed",
        "_grammar",
        "_largest",
        "_num_accepted",
        "_num_generated",
        "_num_proposed",
        "_num_sampled",
        "_num_top",
        "_proposed",
        "_sampled",
        "_sampler",
        "_scorer",
        "_shifted",
        "_speculator",
        "_thoughts",
        "_tops",
    )

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__(request.prompt, request.groups, request.images, request.cache_salt)
        self.may_store = request.may_store
        self.holds = request.holds
        self._open(request)
        self._speculator = _speculator(request, self.tokens)
        self._grammar = request.grammar
        self._allowed = request.grammar.allowed() if request.grammar else None
        self._thoughts = request.thoughts
        self._proposed: list[int] = []  # tokens for the positions after the last one
        self._sampler = Sampler(request.sampling, request.rules)
        self._sampler.begin([token for token in self.tokens if token >= 0])
        top = request.prompt_logprobs
        self._scorer = None if top is None else PromptScorer(self.tokens, top)
        self._sampled: list[Sampled] = []  # not written yet
        self._num_top = request.receipt.wish.top_logits if request.receipt else 0
        self._tops: list[bytes] = []  # the largest logits of each step, if its receipt covers them
        self._shifted = 0
        self._largest: float | None = -1.0  # the last token with the largest logit, unless it is unknown
        # Of those that are sampled, a sequence may leave its slot before some are written.
        self._num_sampled = self._num_generated = self._num_proposed = self._num_accepted = 0

    @property
    def counts(self) -> Counts:
        dropped = self._request.dropped_tokens + self._shifted
        guessed = self._num_proposed, self._num_accepted
        return Counts(len(self._request.prompt), self._num_sampled, dropped, *guessed)

    @property
    def can_take_over(self) -> bool:
        """False where log-probabilities of the whole prompt are asked for."""
        return self._request.prompt_logprobs is None

    @property
    def _is_scoring(self) -> bool:
        return self._scorer is not None and not self._scorer.is_done

    @property
    def num_pending(self) -> int:
        """Known and proposed tokens; else the token to come, if that is not the end."""
        open_tokens = len(self.tokens) - len(self.slot.tokens) + len(self._proposed)
        return open_tokens or int(self._length + 1 < self._request.limit)

    def share(self, max_tokens: int, max_outputs: int) -> int:
        num_without = max(0, self.num_pending - len(self._proposed)) + max_outputs - 1
        shift = self._request.shift
        # Where tokens are computed again before a shift, those after the context wait for it.
        room = max_tokens if shift is None else shift.context - len(self.slot.tokens)
        if self._is_scoring:
            room = min(room, max_outputs)
        return super().share(min(max_tokens, num_without, room), max_outputs)

    def outputs(self, begin: int, count: int) -> range:
        """The logits of the last known token, and of the proposed tokens after it.

        Of all tokens while those of the prompt are scored.
        """
        end = begin + count
        if self._is_scoring:
            return range(begin, end)
        return range(min(max(begin, len(self.tokens) - 1), end), end)

    def known(self, begin: int, count: int) -> list[int]:
        missing = begin + count - len(self.tokens)
        return self.tokens[begin : begin + count] + self._proposed[: max(0, missing)]

    @property
    def is_speculating(self) -> bool:
        return bool(self._proposed)

    def is_foreseen(self, most: int, for_sure: bool) -> bool:
        """See `Sequence.is_foreseen`. An end that is ruled out has the largest logit again and again."""
        if self._grammar is not None or self._is_scoring or not self._sampler.is_foreseen(most):
            return False
        if self._forced is not None or self._num_top:
            return False
        if self._speculator is not None and self._speculator.propose():
            return False  # computed together, these are ready sooner
        if not self._sampler.rules_out:
            return True
        return not for_sure and self._largest is not None and self._sampler.may_choose(self._largest)

    def chances(self, later: int, count: int) -> list[tuple[int, ...]]:
        return super().chances(later, count) if self._is_scoring else self._sampler.chances(later, count)

    @property
    def full_context(self) -> range | None:
        shift = self._request.shift
        is_full = shift is not None and len(self.slot.tokens) >= shift.context
        return shift.dropped(whole(self.images) or self.groups) if shift is not None and is_full else None

    def drop(self, positions: range) -> None:
        del self.tokens[positions.start : positions.stop]
        self.groups = without(positions, self.groups)
        self.images = moved_down(self.images, positions)
        self._shifted += len(positions)

    def num_top_logits(self, most: int) -> int:
        return 0 if self._grammar is not None else self._sampler.num_top_logits(most)

    def take(self, rows: OutputRows, top_logits: npt.NDArray[np.float32]) -> int:
        """Sample the token after the last one, and while the proposed one was right, the one after it too."""
        count = self._take_prompt(rows)
        if count:
            rows, top_logits = rows.part(count, len(rows)), top_logits[count:]
        if not len(rows) or not self.is_running:
            return 0
        if not self._prefilled:
            self._prefilled = perf_counter()
        proposed, self._proposed = self._proposed[: len(rows) - 1], []
        before = len(self.tokens)
        for index, token in enumerate([*proposed, None]):
            self._advance(rows.row(index), top_logits[index])
            if not self.is_running or self.tokens[-1] != token:
                break
        new = self.tokens[before:]
        num_accepted = sum(a == b for a, b in zip(new, proposed, strict=False))
        if self._speculator is not None:
            self._speculator.extend(new)
            if proposed:
                self._record_acceptance(self._speculator, len(proposed), num_accepted)
            if self.is_running:
                self._request_proposals(self._speculator, rows.row(len(new) - 1))
        return len(proposed) - num_accepted

    def _take_prompt(self, rows: OutputRows) -> int:
        """Take the logits of tokens of the prompt -> how many these are."""
        if not self._is_scoring:
            return 0
        assert self._scorer is not None
        try:
            return self._scorer.take(len(self.slot.tokens) - len(rows), rows.fetch())
        except ChaskiError as error:
            self._stop(error)
            return len(rows)

    def _advance(self, row: OutputRow, top_logits: npt.NDArray[np.float32]) -> None:
        if self._length >= self._request.limit:
            self._stop("length")
            return
        try:
            forced = self._forced
            if forced is None:
                sampled = self._sampler.sample(row, self._allowed, top_logits)
            else:
                sampled = self._sampler.force(row, forced)
        except ChaskiError as error:
            self._stop(error)
            return
        if self._num_top:
            self._tops.append(top_bytes(row.fetch(), self._num_top))
        self._largest = top_logits[1, 0].item() if top_logits.size else None
        self.tokens.append(sampled.token_id)
        self._sampler.accept(sampled.token_id)
        if self._thoughts is not None:
            self._thoughts.accept(sampled.token_id)
        self._sampled.append(sampled)
        self._num_sampled += 1
        if sampled.token_id in self._request.end_ids:
            self._stop("stop")
        elif self._length >= self._request.limit:
            self._stop("length")

    @property
    def _forced(self) -> int | None:
        """The next token, if the budget of thoughts decides it."""
        return None if self._thoughts is None else self._thoughts.forced

    def propose(self) -> None:
        if self._speculator is not None:
            self._proposed = self._speculator.propose()

    def _record_acceptance(self, speculator: Speculator, num_proposed: int, num_accepted: int) -> None:
        speculator.record_acceptance(num_proposed, num_accepted)
        self._num_proposed += num_proposed
        self._num_accepted += num_accepted

    def _request_proposals(self, speculator: Speculator, row: OutputRow) -> None:
        """Request a proposal that neither limit nor context cuts short, after the token that `row` is for."""
        room = self._request.limit - self._length - 1
        context = self._request.context
        last = place(self.images, len(self.tokens) - 1)
        speculator.request(min(room, context - len(self.tokens)), self.slot.index, row, last)

    def write(self) -> None:
        if self._scorer is not None and (scores := self._scorer.event()) is not None:
            self.events.append(scores)
        sampled, self._sampled = self._sampled, []
        for one in sampled:
            if self._pieces.stop_string is not None:
                break
            self._num_generated += 1
            if self._grammar is not None:
                self._grammar.accept(one.token_id)
            rules = self._request.rules
            self._write(one, rules is None or self._num_generated > rules.min_tokens)
        if sampled and self._grammar is not None and self.is_running:
            try:
                self._allowed = self._grammar.allowed()
            except ChaskiError as error:
                self._stop(error)
        self._write_end(
            held_tokens=self.holds,
            generated_tokens=self._num_generated,
            shifted_tokens=self._shifted,
            proposed_tokens=self._num_proposed,
            accepted_tokens=self._num_accepted,
        )

    def _with_receipt(self, done: Done) -> Done:
        draft, count = self._request.receipt, self._num_generated
        if draft is None or done.reason == "cancelled":
            return done
        # Some tokens may have been sampled before a stop text was found.
        begin = len(self._request.prompt)
        output = self.tokens[begin : begin + count]
        end = End(reason=done.reason, stop=done.stop_string)
        return replace(done, receipt=draft.finished(output, end, self._tops[:count]))

    @property
    def _length(self) -> int:
        """All tokens of the prompt and the answer, those that were dropped on the way included."""
        return len(self.tokens) + self._shifted

    def fail(self, error: ChaskiError) -> None:
        self._sampled = []
        super().fail(error)


def _speculator(request: GenerationRequest, tokens: Items[int]) -> Speculator | None:
    """The speculator of a sequence of these tokens, which grow; None where nothing is to be proposed."""
    if request.grammar is not None:
        return None
    following = _following_speculator(request, tokens)
    return WrittenSpeculator(request.written, following) if request.written else following


def _following_speculator(request: GenerationRequest, tokens: Items[int]) -> Speculator | None:
    """The speculator after the known tokens; None where nothing is to be proposed."""
    if request.max_proposed <= 0:
        return None
    if request.draft is None:
        return NgramSpeculator(tokens, request.max_proposed)
    return request.draft.speculator(tokens, request.cache_salt, request.max_proposed)
