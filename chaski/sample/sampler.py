"""The sampler of one sequence: its options, its random numbers, and its recent tokens for the penalties."""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Iterable
from copy import copy
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chaski.errors import SamplingError
from chaski.sample import bucket_selection, top_k, transforms
from chaski.sample.dry import Repetitions
from chaski.sample.options import SamplingOptions
from chaski.sample.pcg import Pcg
from chaski.sample.rules import TokenRules, forbidden
from chaski.sample.transforms import Logits

__all__ = ["Sampled", "Sampler", "TokenLogprob", "scored"]

# Extreme options may overflow float32; the largest logit is then not finite and refused.
_ignoring_overflow = np.errstate(over="ignore")
# Up to this top_k, sorting the candidates is faster than avoiding it.
_MAX_SORTED = 1024


class TokenLogprob(NamedTuple):
    """A token and its natural log-probability."""

    token_id: int
    logprob: float


class Sampled(NamedTuple):
    """A sampled token; log-probabilities are of the raw logits, and None where they were not asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] | None = None  # most likely first


class LateLogits(Protocol):
    """Logits that are somewhere else until they are needed."""

    @property
    def size(self) -> int: ...

    def fetch(self) -> Logits: ...


class Sampler:
    """Chooses the tokens of one sequence. Equal options, seed, history and logits give equal tokens."""

    def __init__(self, options: SamplingOptions, rules: TokenRules | None = None) -> None:
        """`rules`: the options about texts and ends, in tokens of the vocabulary."""
        self.options = options
        self._rules = rules or TokenRules()
        self.seed = secrets.randbits(64) if options.seed is None else options.seed
        self._random = Pcg.from_seed(self.seed)
        self._recent: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._seen: set[int] = set()
        self._chosen: list[int] = []
        self._repetitions = Repetitions(options, self._rules) if options.has_dry else None
        self._buckets: bucket_selection.BucketSelection | None = None
        self._biased = np.fromiter(options.logit_bias.keys(), np.int64, len(options.logit_bias))
        self._biases = np.fromiter(options.logit_bias.values(), np.float32, len(options.logit_bias))
        # Looked at for every token, and always the same.
        self._needs_all_logits = options.needs_all_logits or bool(self._rules.bad_words)
        self._has_penalties = options.has_penalties
        self._notes_seen = options.repetition_penalty != 1
        self._limits = _bits_of(options)

    def begin(self, prompt: Iterable[int]) -> None:
        """Record the tokens of the prompt, which penalties look at as well."""
        tokens = list(prompt)
        for token_id in tokens:
            self._note(token_id)
        if self._repetitions is not None:
            self._repetitions.begin(tokens)

    def accept(self, token_id: int) -> None:
        """Append a token of the answer."""
        self._chosen.append(token_id)
        self._note(token_id)
        if self._repetitions is not None:
            self._repetitions.accept(token_id)

    def _note(self, token_id: int) -> None:
        if self._notes_seen:
            self._seen.add(token_id)
        if not self._has_penalties:
            return
        self._recent.append(token_id)
        self._counts[token_id] += 1
        window = self.options.repeat_last_n
        if window is not None and len(self._recent) > window:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    @property
    def _excluded(self) -> frozenset[int]:
        """Tokens that are excluded while other tokens are possible."""
        ends = self._rules.ends(len(self._chosen))
        return self._rules.suppressed.union(ends) if ends else self._rules.suppressed

    def is_foreseen(self, most: int) -> bool:
        """Return whether a plan with `most` top logits can choose the next token, with `chances`.

        Where tokens are ruled out, the plan may choose another one.
        """
        options = self.options
        if options.logprobs or self._needs_all_logits or self._counts:
            return False
        is_usual = options.typical_p >= 1 and options.xtc_probability <= 0
        return options.temperature <= 0 or (is_usual and 0 < options.top_k <= most)

    def chances(self, later: int, count: int) -> list[tuple[int, ...]]:
        """Return the numbers that `ops.sample` needs for `count` tokens, after `later` other ones."""
        if self.options.temperature <= 0:
            return [(0,) * (1 + len(self._limits))] * count
        later_24 = self._random.later_24
        return [(later_24(place), *self._limits) for place in range(later, later + count)]

    @property
    def rules_out(self) -> bool:
        """True if some tokens may not be chosen now, if there are others."""
        return bool(self._excluded)

    def may_choose(self, token_id: float) -> bool:
        """Return whether a token is not ruled out."""
        return token_id not in self._excluded

    def num_top_logits(self, most: int) -> int:
        """Number of top logits that `sample` can use next, at most `most`; 0 if it needs all logits."""
        options = self.options
        kept = 1 if options.temperature <= 0 else options.top_k
        excluded = len(self._excluded)
        most -= excluded  # some of the top logits may be theirs
        if not 0 < kept <= most or self._needs_all_logits or (self._counts and not options.only_lowers):
            return 0
        return min(kept + len(self._counts), most) + excluded

    def sample(
        self,
        logits: Logits | LateLogits,
        allowed: npt.NDArray[np.bool_] | None = None,
        top_logits: Logits | None = None,
    ) -> Sampled:
        """The next token. It is not accepted yet.

        allowed: (at least vocabulary,), whether a token may be chosen at all; None is every one of them.
        top_logits: (2, `num_top_logits`), the top logits in descending order, equal ones by id, and their
        ids. They change nothing, but save looking through all logits, and fetching them.
        logits: (vocabulary,), float32, left as they are; -inf rules a token out. Every token that has a bias
        is among them. Raises `SamplingError` if there are none, or any is NaN or +inf, or all are -inf.
        """
        if not 0 < logits.size <= transforms.MAX_VOCABULARY:
            limit = transforms.MAX_VOCABULARY
            raise SamplingError(f"there are {logits.size} logits to sample from; it must be 1 to {limit}")
        token_id = None
        if top_logits is not None and top_logits.size and allowed is None and not self._needs_all_logits:
            token_id = self._choose_from_top(self._without_excluded(top_logits[:, : logits.size]))
        if token_id is not None and not self.options.logprobs:
            return Sampled(token_id)
        whole = logits if isinstance(logits, np.ndarray) else logits.fetch()
        if token_id is None:
            token_id = self._choose(self._considered(whole, allowed))
        if not self.options.logprobs:
            return Sampled(token_id)
        return scored(whole, token_id, self.options.top_logprobs)

    def force(self, logits: Logits | LateLogits, token_id: int) -> Sampled:
        """Return a token that is not drawn, as `sample` returns one. It takes no random number.

        logits: as for `sample`; only log-probabilities need them. Raises `SamplingError` if these are NaN.
        """
        if not self.options.logprobs:
            return Sampled(token_id)
        whole = logits if isinstance(logits, np.ndarray) else logits.fetch()
        return scored(whole, token_id, self.options.top_logprobs)

    def skip(self) -> None:
        """Take the random numbers that `sample` takes, for a token that is not sampled."""
        if self.options.temperature > 0:
            self._excludes_top()
            self._random.next_24()

    @property
    def random_numbers(self) -> Pcg:
        """A copy of the random numbers to come, which can be set to sample a step again."""
        return copy(self._random)

    @random_numbers.setter
    def random_numbers(self, random: Pcg) -> None:
        self._random = random

    def _without_excluded(self, top_logits: Logits) -> Logits:
        """The top logits of tokens that may be chosen; where none is left, these decide nothing."""
        excluded = self._excluded
        if not excluded:
            return top_logits
        places = [place for place, token in enumerate(top_logits[1].tolist()) if token not in excluded]
        return top_logits[:, places]

    @_ignoring_overflow
    def _considered(self, logits: Logits, allowed: npt.NDArray[np.bool_] | None) -> Logits:
        """The logits as they are chosen from. The order of the steps is that of `docs/sampling.md`."""
        considered = logits
        if self._rules.suppressed:
            considered = transforms.rule_out(considered, sorted(self._rules.suppressed))
        if self._biased.size:
            considered = transforms.add_bias(considered, self._biased, self._biases)
        if self._seen:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            considered = transforms.repetition_penalty(considered, seen, self.options.repetition_penalty)
        if self._counts:
            considered = self._penalize(considered)
        if self._repetitions is not None:
            considered = transforms.subtract(considered, *self._repetitions.penalties())
        if self._rules.bad_words:
            words = forbidden(self._rules.bad_words, self._chosen)
            considered = transforms.rule_out(considered, words)
        if allowed is not None:
            considered = np.where(allowed[: logits.size], considered, np.float32(-np.inf))
        considered = self._without_ends(considered)
        return transforms.top_n_sigma(considered, self.options.top_n_sigma)

    def _without_ends(self, logits: Logits) -> Logits:
        """Without the tokens that end too early, unless nothing else is left, as at the end of a grammar."""
        ends = self._rules.ends(len(self._chosen))
        if not ends:
            return logits
        rest = transforms.rule_out(logits, ends)
        return logits if rest.max() == -np.inf else rest

    def _choose_from_top(self, top_logits: Logits) -> int | None:
        """Choose as `_choose` does, from the top logits; None if these do not decide it."""
        if not top_logits.size or not math.isfinite(top_logits[0, 0]):
            return None
        is_greedy = self.options.temperature <= 0
        if is_greedy and not self._counts:
            return int(top_logits[1, 0])
        kept = 1 if is_greedy else min(self.options.top_k, top_logits.shape[1])
        return self._draw_from_top(top_logits, kept)

    @_ignoring_overflow
    def _draw_from_top(self, top_logits: Logits, kept: int) -> int | None:
        options = self.options
        ids, logits = list(map(int, top_logits[1].tolist())), top_logits[0]
        if self._counts:
            found = top_k.penalize(ids, logits.tolist(), self._counts, options, kept)
            if found is None or not math.isfinite(found[1][0]):
                return None
            ids, logits = found
        if options.temperature <= 0:
            return ids[0]
        excludes_top = self._excludes_top()
        return top_k.choose(ids[:kept], logits[:kept], options, self._random.next_24(), excludes_top)

    def _excludes_top(self) -> bool:
        """Return whether XTC excludes the top tokens. It draws an extra number only if XTC is on."""
        probability = self.options.xtc_probability
        return probability > 0 and self._random.next_24() < probability * 2**24

    def _penalize(self, logits: Logits) -> Logits:
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        return transforms.penalize(logits, ids, counts, self.options)

    def _choose(self, logits: Logits) -> int:
        best = int(logits.argmax())  # the first of the largest, or the first NaN
        if not math.isfinite(logits[best]):
            what = "bad_words and the format leave none; " if self._rules.bad_words else ""
            raise SamplingError(
                f"logit {best} is {logits[best]}: no token can be chosen; {what}check the model"
            )
        if self.options.temperature <= 0:
            return best
        excludes_top = self._excludes_top()
        return self._draw(logits, self._random.next_24(), excludes_top)

    @_ignoring_overflow
    def _draw(self, logits: Logits, random: int, excludes_top: bool) -> int:
        options = self.options
        if 0 < options.top_k <= _MAX_SORTED:
            ids = bucket_selection.candidates(logits, options.top_k)
            return transforms.choose(ids, logits[ids], options, random, excludes_top)
        if self._buckets is None or self._buckets.size != logits.size:
            self._buckets = bucket_selection.BucketSelection(logits.size)
        return self._buckets.choose(logits, options, random, excludes_top)


def _bits_of(options: SamplingOptions) -> list[int]:
    """The bits of the temperature as float32, and of top_p and min_p as float64, in numbers of 32 bits."""
    temperature = np.array([transforms.limit_temperature(options.temperature)], np.float32)
    shares = np.array([options.top_p, options.min_p])
    return [*temperature.view(np.int32).tolist(), *shares.view(np.int32).tolist()]


def scored(logits: Logits, token_id: int, num_top: int) -> Sampled:
    """A token and the `num_top` most likely ones with their log-probabilities. logits: (vocabulary,)."""
    ids = np.array([token_id])
    if num_top:
        found = bucket_selection.candidates(logits, num_top)
        ids = np.concatenate((ids, transforms.top_k(found, logits[found], num_top)[0]))
    logprobs = transforms.log_probabilities(logits, ids)
    pairs = tuple(map(TokenLogprob, ids.tolist(), logprobs.tolist()))
    return Sampled(token_id, pairs[0].logprob, pairs[1:] if num_top else None)
