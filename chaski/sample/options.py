"""The options of sampling, as a checked value. Options that end an answer belong to `chaski.chat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from msgspec import Struct, field

from chaski.errors import SamplingError
from chaski.options import OPTIONS, is_integer, is_number

__all__ = ["MAX_BIAS", "SamplingKeywords", "SamplingOptions"]

MAX_BIAS = 100.0


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingOptions` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int | None
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int | None
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    logit_bias: Mapping[int, float] | Mapping[str, float]
    seed: int | None
    logprobs: bool
    top_logprobs: int


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """Sampling options under the names that Ollama gave them; `chaski.options.OPTIONS` explains each.

    A value out of range raises `SamplingError` with the option and its range.

    Sources: `typical_p`, Meister et al. 2022, "Locally Typical Sampling"; `top_n_sigma`, Tang et al. 2024,
    "Top-nσ"; XTC ("exclude top choices"), p-e-w 2024; DRY, `chaski.sample.dry`.
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
        for name in self.__struct_fields__:
            option = OPTIONS[name]
            self._require(name, option.allows(getattr(self, name)), option.wanted)
        self._require("logit_bias", _is_bias(self.logit_bias), _BIAS_MEANING)
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
        """True if DRY lowers the tokens that would continue a repetition."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def needs_all_logits(self) -> bool:
        """True if the top logits are not enough to choose from, whatever came before."""
        return any(
            option.needs_all_logits and getattr(self, name) not in (option.neutral or ())
            for name, option in OPTIONS.items()
        )

    @property
    def only_lowers(self) -> bool:
        """True if no penalty raises a logit."""
        return self.repeat_penalty >= 1 and self.presence_penalty >= 0 and self.frequency_penalty >= 0


_BIAS_MEANING = f"an object of numbers from -{MAX_BIAS:.0f} to {MAX_BIAS:.0f} by token id"


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        is_integer(token) and token >= 0 and is_number(bias) and abs(bias) <= MAX_BIAS
        for token, bias in value.items()
    )
