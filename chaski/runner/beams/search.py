"""Beam search: a group of sequences that grow together; the most likely ones continue.

At each step all beams compute the log-probabilities of their next tokens. The search takes the best
candidates of all beams, sets finished ones aside, and continues with the others. A beam with several of these
candidates is forked, and the forks share its cells. To the engine, beams are sequences with an `origin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from time import perf_counter

import numpy as np
import numpy.typing as npt

from chaski.chat.beams import BeamOptions
from chaski.errors import ChaskiError, SamplingError
from chaski.model.output_rows import OutputRows
from chaski.runner.beams.candidates import Candidate, Hypothesis, RankedAnswers, best_candidates
from chaski.runner.engine.sequence import Counts, Sequence
from chaski.runner.generation.request import GenerationRequest, TextDecoder
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.runner.prefix.slots import Slot
from chaski.sample import Sampled, scored
from chaski.sample.transforms import log_probabilities

__all__ = ["BeamSearch"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Beam(Sequence):
    """One sequence of a search: the prompt, and the beginning of an answer."""

    __slots__ = ("_origin", "answer", "logits", "logprobs", "score", "search")

    search: BeamSearch

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__((), request.groups, request.images, request.cache_salt)
        self.may_store = request.may_store
        self.adapters = request.adapters
        self.score = 0.0
        self.answer: tuple[Sampled, ...] = ()
        self.logprobs: F64 | None = None  # of the next token, kept until all beams have theirs
        self.logits: F32 | None = None  # the same, if top log-probabilities are requested
        self._origin: Slot | None = None

    @property
    def origin(self) -> Slot | None:
        return self._origin

    @property
    def is_open(self) -> bool:
        return True

    @property
    def counts(self) -> Counts:
        return Counts(len(self.search.request.prompt), len(self.answer))

    @property
    def num_computed(self) -> int:
        """The number of computed prompt tokens; the first beam computes the prompt for all beams."""
        return super().num_computed if self is self.search else 0

    def forked(self) -> None:
        self._origin = None

    def outputs(self, begin: int, count: int) -> range:
        end = begin + count
        return range(min(max(begin, len(self.tokens) - 1), end), end)

    def take(self, rows: OutputRows, top_logits: F32) -> int:
        request = self.search.request
        logits = rows.row(0).fetch()
        self.logprobs = _log_probabilities(logits)
        if request.rules is not None:
            self.logprobs[[*request.rules.suppressed, *request.rules.never]] = -np.inf
        if request.sampling.top_logprobs:
            self.logits = logits.copy()
        return 0

    def longer(self, token: int, logprob: float) -> tuple[Sampled, ...]:
        """Return its answer with one more token."""
        if self.logits is None:
            return (*self.answer, Sampled(token, logprob))
        return (*self.answer, scored(self.logits, token, self.search.request.sampling.top_logprobs))

    def propose(self) -> None:
        self.search.advance()

    def fail(self, error: ChaskiError) -> None:
        self.search.end(error)

    def restart(self) -> None:
        """Compute the beam's tokens again; an unused beam has no tokens."""
        self.forked()
        self.logprobs = self.logits = None
        if not self.search.uses(self):
            self.tokens = []

    def write(self) -> None:
        self.search.tell_all()

    def go_on(self, slot: Slot | None, score: float, answer: tuple[Sampled, ...]) -> None:
        """Become another beam extended by one token. `slot` contains its earlier tokens; None means the own
        slot.
        """
        self._origin = slot
        self.tokens = [*self.search.request.prompt, *(each.token_id for each in answer)]
        self.score, self.answer, self.logprobs, self.logits = score, answer, None, None


class BeamSearch(Beam):
    """The first beam, which computes the prompt and manages the search. Its events report one answer, the one
    with rank `rank`.

    Equal searches that are submitted together are computed once: the later ones join the first one, which
    also makes their events.
    """

    def __init__(self, request: GenerationRequest, options: BeamOptions, rank: int = 0) -> None:
        options.require_answer(rank)
        super().__init__(request)
        self.request = request
        self.tokens = list(request.prompt)
        self.holds = request.holds
        self.search = self
        self._others = [Beam(request) for _ in range(options.num_beams - 1)]
        for member in self._others:
            member.search = self
        self._beams: list[Beam] = [self]  # best first
        self._options = options
        self._rank = rank
        self.answers = RankedAnswers(options, request.limit - len(request.prompt))
        self._joined: list[BeamSearch] = []
        self._is_found = False
        self.is_told = False
        self._key = _key(request, options)
        self._started = self._prefilled = 0.0

    @property
    def members(self) -> Items[Sequence]:
        return self._others

    def require_slots(self, parallel: int) -> None:
        self._options.require_slots(parallel)

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self._started = perf_counter() - self.restored.seconds

    def join(self, others: Iterable[Sequence]) -> Sequence | None:
        for other in others:
            if isinstance(other, BeamSearch) and other.is_running and other._key == self._key:
                if self not in other._joined:
                    other._joined.append(self)
                return other
        return None

    def cancel(self) -> None:
        for beam in (self, *self._others):
            beam.is_running = False

    def end(self, error: ChaskiError) -> None:
        """End the search with an error. Searches that joined it start again, unless answers were found."""
        for search in (self, *self._joined) if self._is_found else (self,):
            if not search.is_told:
                search.is_told = True
                search.events.append(error)
        self.cancel()

    def uses(self, beam: Beam) -> bool:
        """Return whether a beam continues."""
        return beam in self._beams

    def advance(self) -> None:
        """Choose the beams of the next step once all beams have their log-probabilities."""
        beams = [(beam.score, beam.logprobs) for beam in self._beams if beam.logprobs is not None]
        if not self.is_running or len(beams) < len(self._beams):
            return
        self._prefilled = self._prefilled or perf_counter()
        request, num_beams = self.request, self._options.num_beams
        length = len(self.answer) + 1
        is_full_length = len(request.prompt) + length >= request.limit
        best = best_candidates(beams, max(2, 1 + len(request.end_ids)) * num_beams)
        ends = [is_full_length or each.token in request.end_ids for each in best]
        self.answers.add(
            (
                -each.cost,
                self._beams[each.beam].longer(each.token, each.logprob),
                each.token not in request.end_ids,
            )
            for each, is_end in zip(best[:num_beams], ends, strict=False)
            if is_end
        )
        going = [each for each, is_end in zip(best, ends, strict=True) if not is_end][:num_beams]
        if not going or self.answers.is_final(-going[0].cost, length):
            self._is_found = True
            for search in (self, *self._joined):
                search.cancel()
        else:
            self._fork(going)

    def _fork(self, going: list[Candidate]) -> None:
        """Continue a beam with its best candidate in its own slot, and with others in the slots of other
        beams.
        """
        parents = [self._beams[each.beam] for each in going]
        answers = [
            parent.longer(each.token, each.logprob) for parent, each in zip(parents, going, strict=True)
        ]
        free = [beam for beam in (self, *self._others) if beam not in parents]
        placed: set[Beam] = set()
        beams = []
        for each, parent, answer in zip(going, parents, answers, strict=True):
            beam = free.pop() if parent in placed else parent
            placed.add(parent)
            beam.go_on(None if beam is parent else parent.slot, -each.cost, answer)
            beams.append(beam)
        self._beams = beams
        for beam in free:  # fewer candidates than beams
            beam.tokens = list(beam.slot.tokens)

    def tell_all(self) -> None:
        """Queue the events of all answers once they are found."""
        for search in (self, *self._joined) if self._is_found else ():
            if not search.is_told:
                search.tell(self)

    def tell(self, found: BeamSearch) -> None:
        """Queue the events of its own answer from the results of a search, which may be this search."""
        if self._rank >= len(found.answers.found):
            count = len(found.answers.found)
            self.is_told = True
            self.events.append(
                SamplingError(f"the search found only {count} answers; ask for at most that many")
            )
            return
        request, result = self.request, found.answers.found[self._rank]
        pieces = PieceStream(request.stop, request.keeps_stop)
        if request.decoder is not None:
            self._tell_text(request.decoder, result, pieces)
        done = request.report(
            found,
            (found._started, found._prefilled),
            reason="length" if result.is_cut and pieces.stop_string is None else "stop",
            stop_string=pieces.stop_string,
            held_tokens=request.holds,
            generated_tokens=len(result.answer),
        )
        self.events.append(done)
        self.is_told = True

    def _tell_text(self, decoder: TextDecoder, result: Hypothesis, pieces: PieceStream) -> None:
        """Queue the text of an answer, up to a stop string."""
        request, event = self.request, None
        for one in result.answer:
            if one.token_id in request.end_ids and one.token_id not in request.shown_ends:
                continue
            shown = one if request.sampling.logprobs else Sampled(one.token_id)
            event, _ = pieces.feed(TokenText(decoder.feed(one.token_id), shown))
            if event is not None:
                self.events.append(event)
            if pieces.stop_string is not None:
                return
        if (event := pieces.flush(decoder.flush())) is not None:
            self.events.append(event)


def _key(request: GenerationRequest, options: BeamOptions) -> tuple[object, ...]:
    """Return a key that is equal for searches with the same result, so that they can share one search."""
    return (
        options.num_beams,
        options.length_penalty,
        options.early_stopping,
        request.prompt,
        [(run.positions, run.first_row, run.image.digest) for run in request.images],
        request.cache_salt,
        request.may_store,
        "" if request.adapters is None else request.adapters.key,
        request.limit,
        request.end_ids,
        None if request.rules is None else (request.rules.suppressed, request.rules.never),
        request.sampling.top_logprobs,
    )


def _log_probabilities(logits: F32) -> F64:
    """Return the log-probability of every token. Raises SamplingError for logits that are NaN."""
    return log_probabilities(logits, np.arange(len(logits)))
