"""DRY, "don't repeat yourself": penalties for tokens that would continue a repetition.

If the last tokens occurred earlier in the text, the token that followed them there is lowered, the more the
longer the repetition is. Texts such as line breaks end a repetition, so that lists and dialogues keep their
form. Rule and options are those of llama.cpp's `dry` sampler, after a proposal of p-e-w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.sample.options import SamplingOptions
from chaski.sample.rules import TokenRules
from chaski.sample.transforms import TokenIds

__all__ = ["Repetitions", "suffix_lengths"]

_MAX_LOG = 88.7  # e to the power of more exceeds float32
_RECENT = 256


class Repetitions:
    """The tokens of one sequence, each with the length of the repetition of the last ones ending there."""

    def __init__(self, options: SamplingOptions, rules: TokenRules) -> None:
        self._options = options
        self._rules = rules
        self._longest = max((len(text) for text in rules.breakers), default=1)
        self._size = 0
        self._tokens = np.empty(1024, np.int64)
        self._lengths = np.zeros(1024, np.int64)
        self._tail = b""
        self._behind_breaker = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Set the tokens of the prompt."""
        window = self._options.dry_penalty_last_n
        kept = list(tokens if window is None else tokens[max(len(tokens) - window, 0) :])
        self._reserve(len(kept))
        self._size = len(kept)
        self._tokens[: self._size] = kept
        self._lengths[: self._size] = suffix_lengths(kept)
        self._find_breaker(kept[-_RECENT:])
        if self._behind_breaker >= _RECENT:
            self._find_breaker(kept)

    def accept(self, token_id: int) -> None:
        """Append a token."""
        self._reserve(self._size + 1)
        size = self._size
        before = np.zeros(size, np.int64)
        before[1:] = self._lengths[: max(size - 1, 0)]
        self._lengths[:size] = np.where(self._tokens[:size] == token_id, before + 1, 0)
        self._tokens[size] = token_id
        self._size = size + 1
        self._pass(token_id)

    def penalties(self) -> tuple[TokenIds, npt.NDArray[np.float64]]:
        """The tokens that would repeat something, and the amounts subtracted from their logits, (m,) each."""
        options, size = self._options, self._size
        window = options.dry_penalty_last_n
        start = 0 if window is None else max(size - window, 0)
        allowed = options.dry_allowed_length
        if self._behind_breaker < allowed or size - start < 2:
            return np.empty(0, np.int64), np.empty(0)
        # Nothing reaches back over a breaker, or out of the window.
        lengths = np.minimum(self._lengths[start : size - 1], self._behind_breaker)
        lengths = np.minimum(lengths, np.arange(1, lengths.size + 1))
        places = np.flatnonzero(lengths >= allowed)
        places = places[np.argsort(lengths[places], kind="stable")]
        following = self._tokens[start + 1 + places].tolist()
        longest = dict(zip(following, lengths[places].tolist(), strict=True))
        found = {token: length for token, length in longest.items() if not self._is_breaker(token)}
        exponents = np.fromiter(found.values(), np.int64, len(found)) - allowed
        if options.dry_base > 1:
            exponents = np.minimum(exponents, int(_MAX_LOG / math.log(options.dry_base)))
        # Products one after the other: powers of NumPy differ in their last bits between processors.
        factors = np.full(1 + exponents.max(initial=0), options.dry_base)
        factors[0] = 1
        amounts: npt.NDArray[np.float64] = options.dry_multiplier * np.multiply.accumulate(factors)[exponents]
        return np.fromiter(found.keys(), np.int64, len(found)), amounts

    def _reserve(self, size: int) -> None:
        if size > self._tokens.size:
            more = max(size, 2 * self._tokens.size)
            self._tokens = np.resize(self._tokens, more)
            self._lengths = np.resize(self._lengths, more)

    def _find_breaker(self, tokens: Sequence[int]) -> None:
        self._tail, self._behind_breaker = b"", 0
        for token_id in tokens:
            self._pass(token_id)

    def _pass(self, token_id: int) -> None:
        """Count the tokens after the last breaker, which may reach over several tokens."""
        text = self._tail + self._rules.spell(token_id)
        begun = len(self._tail)
        is_end = any(text.find(mark, max(begun - len(mark) + 1, 0)) >= 0 for mark in self._rules.breakers)
        self._behind_breaker = 0 if is_end else self._behind_breaker + 1
        self._tail = text[max(len(text) - self._longest + 1, 0) :]

    def _is_breaker(self, token_id: int) -> bool:
        spelled = self._rules.spell(token_id)
        return any(mark in spelled for mark in self._rules.breakers)


def suffix_lengths(tokens: Sequence[int]) -> list[int]:
    """For each position the length of the longest text that ends there, and that all of them end with.

    It is 0 for the last one. The Z-function of the tokens in reverse, in linear time (Gusfield 1997).
    """
    items = tokens[::-1]
    size = len(items)
    lengths = [0] * size
    left = right = 0
    for place in range(1, size):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < size and items[length] == items[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths[::-1]
