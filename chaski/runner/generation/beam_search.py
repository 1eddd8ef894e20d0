"""Beam search: a group of sequences that grow together, of which the most likely ones go on.

At each step all beams have the log-probabilities of their next tokens. The best candidates of all beams are
taken, ended ones are set aside, and the others are the beams of the next step. A beam with several of them
is forked: others share its cells. Candidates that are equally likely are in the order of their beams, and
those of one beam in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chaski.chat.events import Done
from chaski.errors import ChaskiError, SamplingError
from chaski.model.output_rows import OutputRows
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.runner.prefix.slots import Slot
from chaski.sample import Sampled

__all__ = ["BeamOptions", "BeamSearch"]

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Options of a beam search, in the terms of transformers.

    num_beams       sequences that grow together
    length_penalty  the score of an answer is the sum of its log-probabilities over its length to this power
    early_stopping  True ends with `num_beams` answers; False if no beam is likely to become better than these
                    as long as it is; "never" if none can become better at any length
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


class Hypothesis(NamedTuple):
    """The tokens of an answer that ended, and its score."""

    score: float
    answer: tuple[Sampled, ...]
    is_cut: bool


class _Candidate(NamedTuple):
    """A beam with one more token. In ascending order the best one is first."""

    cost: float
    beam: int
    token: int
    logprob: float


class Beam(Sequence):
    """One of the sequences of a search: the prompt, and the beginning of an answer to it."""

    __slots__ = ("_origin", "answer", "logprobs", "score", "search")

    search: BeamSearch

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__((), request.groups, request.images, request.cache_salt)
        self.may_store = request.may_store
        self.adapters = request.adapters
        self.score = 0.0
        self.answer: tuple[Sampled, ...] = ()
        self.logprobs: F64 | None = None  # of the next token, until all beams have theirs
        self._origin: Slot | None = None

    @property
    def origin(self) -> Slot | None:
        return self._origin

    @property
    def is_open(self) -> bool:
        return True

    def forked(self) -> None:
        self._origin = None

    def outputs(self, begin: int, count: int) -> range:
        end = begin + count
        return range(min(max(begin, len(self.tokens) - 1), end), end)

    def take(self, rows: OutputRows, top_logits: npt.NDArray[np.float32]) -> int:
        self.logprobs = _log_probabilities(rows.row(0).fetch())
        return 0

    def propose(self) -> None:
        self.search.advance()

    def fail(self, error: ChaskiError) -> None:
        self.search.end(error)

    def write(self) -> None:
        """The search tells its answers itself."""

    def go_on(self, slot: Slot | None, score: float, answer: tuple[Sampled, ...]) -> None:
        """Be another beam with one more token, whose other tokens are in `slot`; None for its own slot."""
        self._origin = slot
        self.tokens = [*self.search.request.prompt, *(each.token_id for each in answer)]
        self.score, self.answer, self.logprobs = score, answer, None


class BeamSearch(Beam):
    """The first beam, which computes the prompt, and the search. Its events are one answer, the `rank`-th."""

    __slots__ = (
        "_beams",
        "_cached",
        "_computed",
        "_finished",
        "_options",
        "_prefilled",
        "_rank",
        "_result",
        "_started",
        "request",
        "search_members",
    )

    def __init__(self, request: GenerationRequest, options: BeamOptions, rank: int = 0) -> None:
        super().__init__(request)
        self.request = request
        self.tokens = list(request.prompt)
        self.search = self
        self.search_members = [Beam(request) for _ in range(options.num_beams - 1)]
        for member in self.search_members:
            member.search = self
        self._beams: list[Beam] = [self]  # the best one first
        self._options = options
        self._rank = rank
        self._finished: list[Hypothesis] = []
        self._result: Hypothesis | None = None
        self._cached = self._computed = 0
        self._started = self._prefilled = 0.0

    @property
    def members(self) -> Items[Sequence]:
        return self.search_members

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self._cached = len(slot.tokens)
        self._started = perf_counter() - self.restored.seconds

    def cancel(self) -> None:
        for beam in (self, *self.search_members):
            beam.is_running = False

    def end(self, error: ChaskiError) -> None:
        """End the whole search with an error."""
        if self.is_running:
            self.events.append(error)
        self.cancel()

    def advance(self) -> None:
        """Choose the beams of the next step, if all beams have their log-probabilities."""
        if not self.is_running or any(beam.logprobs is None for beam in self._beams):
            return
        self._prefilled = self._prefilled or perf_counter()
        options, request = self._options, self.request
        num_beams, length = options.num_beams, len(self.answer) + 1
        self._computed += len(self._beams)
        is_full_length = len(request.prompt) + length >= request.limit
        best = self._candidates(max(2, 1 + len(request.end_ids)) * num_beams)
        ends = [is_full_length or each.token in request.end_ids for each in best]
        ended = [each for each, is_end in zip(best[:num_beams], ends, strict=False) if is_end]
        self._finished += [
            Hypothesis(
                -each.cost / length**options.length_penalty,
                self._longer(each),
                each.token not in request.end_ids,
            )
            for each in ended
        ]
        self._finished.sort(key=lambda each: -each.score)
        del self._finished[num_beams:]
        going = [each for each, is_end in zip(best, ends, strict=True) if not is_end][:num_beams]
        if not going or self._is_done(-going[0].cost, length):
            self._result = self._finished[self._rank]
            self.cancel()
        else:
            self._fork(going)

    def _candidates(self, count: int) -> list[_Candidate]:
        found: list[_Candidate] = []
        for index, beam in enumerate(self._beams):
            logprobs = beam.logprobs
            assert logprobs is not None
            kept = min(count, len(logprobs))
            least = np.partition(logprobs, -kept)[-kept]
            tokens = np.flatnonzero((logprobs >= least) & np.isfinite(logprobs))
            found += [
                _Candidate(-(beam.score + logprob), index, token, logprob)
                for token, logprob in zip(tokens.tolist(), logprobs[tokens].tolist(), strict=True)
            ]
        return sorted(found)[:count]

    def _longer(self, candidate: _Candidate) -> tuple[Sampled, ...]:
        return (*self._beams[candidate.beam].answer, Sampled(candidate.token, candidate.logprob))

    def _is_done(self, best: float, length: int) -> bool:
        """Return whether answers that are still open need not be looked at; `best` is that of one of them."""
        options = self._options
        if len(self._finished) < options.num_beams:
            return False
        if options.early_stopping is True:
            return True
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self.request.limit - len(self.request.prompt)
        return bool(best / length**options.length_penalty <= self._finished[-1].score)

    def _fork(self, going: list[_Candidate]) -> None:
        """Let a beam go on in its slot with its best candidate; the other ones go on in slots of others."""
        chosen = [(self._beams[each.beam], -each.cost, self._longer(each)) for each in going]
        parents = [parent for parent, _, _ in chosen]
        free = [beam for beam in (self, *self.search_members) if beam not in parents]
        placed: set[Beam] = set()
        beams = []
        for parent, score, answer in chosen:
            beam = free.pop() if parent in placed else parent
            placed.add(parent)
            beam.go_on(None if beam is parent else parent.slot, score, answer)
            beams.append(beam)
        self._beams = beams
        for beam in free:  # fewer candidates than beams
            beam.tokens = list(beam.slot.tokens)

    def write(self) -> None:
        result, self._result = self._result, None
        if result is None:
            return
        request = self.request
        pieces = PieceStream(())
        if request.decoder is not None:
            for one in result.answer:
                if one.token_id not in request.end_ids:
                    event, _ = pieces.feed(TokenText(request.decoder.feed(one.token_id), one))
                    if event is not None:
                        self.events.append(event)
            if (event := pieces.flush(request.decoder.flush())) is not None:
                self.events.append(event)
        self.events.append(
            Done(
                reason="length" if result.is_cut else "stop",
                prompt_tokens=len(request.prompt),
                cached_tokens=self._cached,
                memory_tokens=self.restored.memory,
                disk_tokens=self.restored.disk,
                saved_seconds=self.restored.saved_seconds,
                generated_tokens=len(result.answer),
                dropped_tokens=request.dropped_tokens,
                load_seconds=request.load_seconds,
                prefill_seconds=self._prefilled - self._started,
                decode_seconds=perf_counter() - self._prefilled,
            )
        )


def _log_probabilities(logits: npt.NDArray[np.float32]) -> F64:
    """Return the log-probability of every token. Raises SamplingError for logits that are no numbers."""
    top = float(logits.max())
    if not np.isfinite(top):
        raise SamplingError("the model's logits are no finite numbers")
    shifted = logits.astype(np.float64) - top
    result: F64 = shifted - np.log(np.exp(shifted).sum())
    return result
