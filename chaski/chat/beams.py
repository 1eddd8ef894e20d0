"""The options of a beam search, and the checks of everything that a request may ask of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import Struct

from chaski.errors import OptionError
from chaski.options import OPTIONS

__all__ = ["BeamKeywords", "BeamOptions", "check_beams", "is_search", "require_whole", "taken_defaults"]


class BeamKeywords(TypedDict, total=False):
    """The fields of `BeamOptions` as keyword arguments."""

    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]


class BeamOptions(Struct, frozen=True, kw_only=True):
    """Options of a beam search, in the terms of transformers.

    num_beams       number of sequences that grow together; 1 turns the search off
    length_penalty  the score of an answer is the sum of its log-probabilities over its length to this power
    early_stopping  True ends with `num_beams` answers; False if no beam is likely to become better than these
                    as long as it is; "never" if none can become better at any length
    """

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise OptionError(
                f'option early_stopping is {self.early_stopping!r:.200}; it must be True, False or "never"'
            )

    @property
    def is_search(self) -> bool:
        """True if they ask for a search."""
        return self.num_beams > 1

    def require_answer(self, rank: int) -> None:
        """Raise OptionError if the search has no `rank`-th answer, counted from 0."""
        if rank >= self.num_beams:
            raise OptionError(
                f"a beam search with num_beams of {self.num_beams} has no answer {rank + 1}; "
                f"ask for at most {self.num_beams} answers with n, or set num_beams to {rank + 1} or more"
            )

    def require_slots(self, parallel: int) -> None:
        """Raise OptionError if an engine that computes `parallel` sequences at a time is too narrow."""
        if self.num_beams > parallel:
            raise OptionError(
                f"num_beams is {self.num_beams}, but only {parallel} sequences are computed at a time; "
                f"search with at most {parallel} beams, or load the model with parallel={self.num_beams}"
            )


def is_search(options: Mapping[str, Any]) -> bool:
    """Return whether options that are not checked yet ask for a beam search."""
    return options.get("num_beams") not in (None, 1)


def require_whole(options: Mapping[str, Any]) -> None:
    """Raise OptionError for a beam search: its answers are known at its end, so they have no stream."""
    if is_search(options):
        raise OptionError("a beam search (num_beams) has no stream: its answers are known at its end")


def taken_defaults(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults of a model for `options`: a beam search takes those that it supports."""
    if not is_search({**defaults, **options}):
        return defaults
    return {name: value for name, value in defaults.items() if OPTIONS[name].neutral is None}


def check_beams(found: BeamOptions, options: Mapping[str, Any]) -> None:
    """Raise OptionError for options that a beam search refuses, or for those of one without `num_beams`."""
    if not found.is_search:
        for name, default in (("length_penalty", 1), ("early_stopping", False)):
            if options.get(name, default) != default:
                raise OptionError(f"option {name} is for a beam search; give num_beams above 1 with it")
        return
    for name, value in options.items():
        neutral = OPTIONS[name].neutral
        if neutral is not None and value not in neutral:
            raise OptionError(f"option {name} is {value!r:.80}; a beam search (num_beams) has no such thing")
    if options.get("num_predict") == 0:
        raise OptionError("option num_predict is 0; a beam search (num_beams) needs at least one token")
