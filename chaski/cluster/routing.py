"""Which replica answers a request: the one whose first token is expected soonest.

A replica that holds the beginning of a prompt need not compute it; one with less to do begins sooner. Both
are seconds, by what was measured, and are added up. `choose` is a pure function of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

__all__ = ["Candidate", "Load", "Speed", "choose", "seconds_to_first_token"]

# Chosen by `benchmarks/routing.py`: 0 loses a quarter of the answers where all replicas are busy, more than
# this gains nothing.
_SHARE_OF_OTHERS = 0.5


class Speed(Struct, frozen=True):
    """How fast a replica is, as measured.

    prefill         tokens of prompts a second
    answer_seconds  the time that an answer keeps its place, from its first token on
    beside          the share by which one more answer beside them slows all others
    """

    prefill: float
    answer_seconds: float
    beside: float = 0.1


class Load(Struct, frozen=True):
    """What a replica has to do.

    places   answers that it computes at a time
    answers  those that it was given and that have not ended
    pending  tokens of their prompts that are not computed yet
    """

    places: int
    answers: int = 0
    pending: int = 0


class Candidate(Struct, frozen=True):
    """A replica that could answer, by its number; it holds the first `cached` tokens of the prompt."""

    replica: int
    cached: int
    load: Load
    speed: Speed


def choose(candidates: Iterable[Candidate], prompt_tokens: int) -> Candidate:
    """Return the candidate with the soonest first token; of equal ones that with less to do, then the first.

    Raises ValueError where there is none.
    """
    return min(
        candidates,
        key=lambda each: (
            seconds_to_first_token(each, prompt_tokens),
            each.load.answers / each.load.places,
            each.replica,
        ),
    )


def seconds_to_first_token(candidate: Candidate, prompt_tokens: int) -> float:
    """Return how long a request with such a prompt would wait there for its first token.

    It waits for a place, for the prompts before its own, and for its own. What it adds to the time of those
    that are answered there counts, too: half of the time of its prompt for each, and what one more answer
    slows them. Without that, replicas that have much to do give their prompts away to others, which compute
    them anew, until all have much to do.
    """
    load, speed = candidate.load, candidate.speed
    own = max(1, prompt_tokens - candidate.cached) / speed.prefill
    computing = load.pending / speed.prefill + own * (1 + load.answers * _SHARE_OF_OTHERS)
    beside = min(load.answers, load.places) * speed.beside * speed.answer_seconds / load.places
    excess = load.answers - load.places + 1
    waiting = excess * speed.answer_seconds / load.places if excess > 0 else 0.0
    return computing + beside + waiting
