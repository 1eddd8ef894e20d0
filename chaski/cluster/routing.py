"""Choice of the replica for a request: the one with the earliest expected first token.

A replica that holds the prefix of a prompt need not compute it, and a less busy replica starts earlier. Both
effects are estimated in seconds from measurements and added. `choose` is a pure function of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

__all__ = ["Candidate", "Load", "Speed", "choose", "seconds_to_first_token"]

# Chosen with `benchmarks/routing.py`: 0 loses a quarter of the throughput when all replicas are busy; larger
# values gain nothing.
_SHARE_OF_OTHERS = 0.5


class Speed(Struct, frozen=True):
    """The measured speed of a replica.

    prefill         tokens of prompts a second
    answer_seconds seconds for which an answer occupies its place, from its first token beside share by which
    each additional answer slows all others
    """

    prefill: float
    answer_seconds: float
    beside: float = 0.1


class Load(Struct, frozen=True):
    """The load of a replica.

    places   answers that it computes at a time
    answers running and waiting answers pending tokens of their prompts that are still to be computed
    """

    places: int
    answers: int = 0
    pending: int = 0


class Candidate(Struct, frozen=True):
    """A possible replica for a request, by number. It holds the first `cached` tokens of the prompt."""

    replica: int
    cached: int
    load: Load
    speed: Speed


def choose(candidates: Iterable[Candidate], prompt_tokens: int) -> Candidate:
    """Return the candidate with the earliest first token. Ties go to the less busy, then the first one.

    Raises ValueError without candidates.
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
    """Return the cost of sending a prompt to a candidate, in seconds until its first token.

    The request waits for a place, for earlier prompts and for its own prompt. The delay that it causes to
    other answers there counts too: for each, half the time of its prompt and the slowdown by one more answer.
    Without this, busy replicas would pass their prompts to others, which compute them again, until all are
    busy.
    """
    load, speed = candidate.load, candidate.speed
    own = max(1, prompt_tokens - candidate.cached) / speed.prefill
    computing = load.pending / speed.prefill + own * (1 + load.answers * _SHARE_OF_OTHERS)
    beside = min(load.answers, load.places) * speed.beside * speed.answer_seconds / load.places
    excess = load.answers - load.places + 1
    waiting = excess * speed.answer_seconds / load.places if excess > 0 else 0.0
    return computing + beside + waiting
