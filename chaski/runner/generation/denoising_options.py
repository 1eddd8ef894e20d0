"""The options of answers by denoising, and the refusal of those that need an answer token by token."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.chat.options import CONSTRAINTS, AnswerOptions
from chaski.errors import ContextLengthError, OptionError
from chaski.runner.generation.denoised import Schedule
from chaski.sample import SamplingOptions

__all__ = ["USUAL_LENGTH", "require_denoisable", "schedule"]

USUAL_LENGTH = 256
"""Tokens of an answer without `num_predict`. The length of an answer is decided before it begins."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(CONSTRAINTS, (None,)),
    "bad_words": ((),),
    "min_tokens": (0,),
    "num_beams": (1,),
    "prompt_logprobs": (None,),
    "reasoning_budget": (-1,),
    "receipt": (None,),
}


def require_denoisable(limits: AnswerOptions, sampling: SamplingOptions) -> None:
    """Raise OptionError for an option that needs the tokens of an answer in their order."""
    asked = [name for name, neutral in _NEUTRAL.items() if getattr(limits, name) not in neutral]
    if sampling.logprobs:
        asked.append("logprobs")
    if asked:
        raise OptionError(
            f"option {asked[0]} needs tokens in order, but this model denoises whole blocks; leave the "
            "option out"
        )
    if limits.num_predict == 0:
        raise OptionError("option num_predict is 0; a model that denoises needs at least one token")


def schedule(limits: AnswerOptions, room: int) -> Schedule:
    """Return how an answer is denoised, where the context has room for `room` tokens after the prompt."""
    if room < 1:
        raise ContextLengthError(
            "the prompt fills the context, and a model that denoises needs room for the answer; "
            "use a larger context, or a shorter prompt"
        )
    length = min(limits.num_predict if limits.num_predict > 0 else USUAL_LENGTH, room)
    return Schedule(length, min(limits.denoising_block, length), limits.denoising_steps or length)
