"""The options of sampling, as a checked value. Options that end an answer belong to `chaski.chat`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from chaski.errors import SamplingError

__all__ = ["MAX_BIAS", "MAX_TOP_LOGPROBS", "RANGES", "SamplingOptions", "nearest"]

MAX_TOP_LOGPROBS = 20
MAX_BIAS = 100.0


RANGES = {"temperature": (0.0, math.inf), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "typical_p": (0.0, 1.0)}


def nearest(name: str, value: Any) -> Any:
    """Clamp a number to the range of the option, as Ollama does. Other values stay as they are."""
    least, most = RANGES.get(name, (-math.inf, math.inf))
    return min(max(value, least), most) if _is_number(value) else value


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """Sampling options under the names that Ollama gave them.

    `top_k` of 0 or less or above the vocabulary keeps every token. Anything else out of range raises
    `SamplingError` with the option and its range. Ollama takes some numbers beyond theirs, see `nearest`.

    temperature        divides the logits; 0 always takes the most likely token
    top_k              keep this many of the most likely tokens; 0 keeps all
    top_p              keep the most likely tokens until their probability exceeds this; 1 keeps all
    min_p              drop tokens below this share of the top token's probability; 0 keeps all
    typical_p          keep the tokens whose surprisal is nearest to the mean until their probability exceeds
                       this (Meister et al. 2022, "Locally Typical Sampling"); 1 keeps all
    repeat_last_n      number of latest tokens that the penalties look at; 0 none, None all of them
    repeat_penalty     divides positive and multiplies negative logits of those tokens; 1 is off
    presence_penalty   subtracted once from the logit of each of those tokens; 0 is off
    frequency_penalty  subtracted as often as the token occurs among them; 0 is off
    repetition_penalty  `repeat_penalty` for all tokens of prompt and answer, as in vLLM; 1 is off
    dry_multiplier     lowers tokens that would go on with a repetition (see `chaski.sample.dry`), by this
                       times `dry_base` to the power of its length above `dry_allowed_length`; 0 is off
    dry_base           at least 1
    dry_allowed_length  repetitions shorter than this are free
    dry_penalty_last_n  number of latest tokens that are searched for repetitions; None all of them
    top_n_sigma        drop tokens whose logit is more than this many standard deviations of all logits below
                       the top one (Tang et al. 2024, "Top-nσ"); 0 or less keeps all
    xtc_probability    probability of excluding the top tokens ("exclude top choices", p-e-w 2024), which are
    xtc_threshold      those of at least this probability but the least likely of them
    logit_bias         by token id, what is added to its logit before all else, -100 to 100; 100 makes a
                       token as good as certain, -100 as good as impossible
    seed               0 to 2**64 - 1 for a repeatable draw; None takes a fresh one
    logprobs           report the log-probability of the chosen token
    top_logprobs       and those of this many most likely tokens, 0 to 20; needs `logprobs`
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int | None = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int | None = None
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            self._require(name, _is_number(getattr(self, name)), "a finite number")
        for name in ("repeat_penalty", "repetition_penalty"):
            value = getattr(self, name)
            self._require(name, _is_number(value) and value > 0, "a finite number above 0")
        for name, least in (("dry_multiplier", 0), ("dry_base", 1)):
            value = getattr(self, name)
            self._require(name, _is_number(value) and value >= least, f"a finite number of at least {least}")
        for name in ("xtc_probability", "xtc_threshold"):
            value = getattr(self, name)
            self._require(name, _is_number(value) and 0 <= value <= 1, "a number from 0 to 1")
        for name, (low, high) in RANGES.items():
            wanted = f"a number from {low:g} {'up' if high == math.inf else f'to {high:g}'}"
            self._require(name, low <= getattr(self, name) <= high, wanted)
        self._require("top_k", _is_integer(self.top_k), "an integer; 0 keeps every token")
        length, seed = self.dry_allowed_length, self.seed
        self._require("dry_allowed_length", _is_integer(length) and length >= 0, "an integer of at least 0")
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            window = getattr(self, name)
            is_window = window is None or (_is_integer(window) and window >= 0)
            self._require(name, is_window, "an integer of at least 0, or None for all tokens")
        is_seed = seed is None or (_is_integer(seed) and 0 <= seed < 2**64)
        self._require("seed", is_seed, "an integer from 0 to 2**64 - 1, or None for a fresh one")
        self._require("logit_bias", _is_bias(self.logit_bias), _BIAS_MEANING)
        self._require("logprobs", isinstance(self.logprobs, bool), "True or False")
        is_count = _is_integer(self.top_logprobs) and 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS
        self._require("top_logprobs", is_count, f"an integer from 0 to {MAX_TOP_LOGPROBS}")
        self._require("top_logprobs", self.logprobs or not self.top_logprobs, "0 unless logprobs is True")

    def _require(self, name: str, is_valid: bool, wanted: str) -> None:
        if not is_valid:
            raise SamplingError(f"option {name} is {getattr(self, name)!r}; it must be {wanted}")

    @property
    def has_penalties(self) -> bool:
        is_neutral = self.repeat_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return self.repeat_last_n != 0 and not is_neutral

    @property
    def has_dry(self) -> bool:
        """True if DRY lowers the tokens that would go on with a repetition."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def needs_all_logits(self) -> bool:
        """True if the top logits are not enough to choose from, whatever came before."""
        return self.has_dry or self.repetition_penalty != 1 or self.top_n_sigma > 0 or bool(self.logit_bias)

    @property
    def only_lowers(self) -> bool:
        """True if no penalty raises a logit."""
        return self.repeat_penalty >= 1 and self.presence_penalty >= 0 and self.frequency_penalty >= 0


_NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty"),
    "top_n_sigma",
)
_BIAS_MEANING = f"an object of numbers from -{MAX_BIAS:.0f} to {MAX_BIAS:.0f} by token id"


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_integer(token) and token >= 0 and _is_number(bias) and abs(bias) <= MAX_BIAS
        for token, bias in value.items()
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # The comparison is false for NaN and, unlike math.isfinite, works for an integer of any size.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
