"""Statistics of a chat, for `/stats` and `/cache`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from chaski.cli.layout import duration, section, size_in_bytes

if TYPE_CHECKING:
    from chaski.chat.events import Done
    from chaski.runner.prefix.use import TierUse

__all__ = ["Answered", "cache_text", "stats_text"]

_SHOWN = 10


class Answered(Struct, frozen=True):
    """A complete answer.

    first_seconds: seconds from the message to the first piece of the answer."""

    done: Done
    first_seconds: float


def stats_text(answers: Sequence[Answered]) -> str:
    """Return a table of tokens and rates for the last answers and for all answers."""
    if not answers:
        return "There is no answer yet."
    proposed = any(each.done.proposed_tokens for each in answers)
    names = ["", "prompt", "cached", "rate", "first", "answer", "rate"]
    begin = max(len(answers) - _SHOWN, 0)
    rows = [
        names + ["right"] * proposed,
        *(_row(str(begin + place), [each], proposed) for place, each in enumerate(answers[begin:], 1)),
    ]
    if len(answers) > 1:
        rows.append(_row("all", answers, proposed))
    return section("Tokens, tokens per second, time to the first token", rows)


def _row(name: str, answers: Sequence[Answered], proposed: bool) -> list[str]:
    found = [each.done for each in answers]
    computed = sum(done.evaluated_tokens for done in found)
    prefill = sum(done.prefill_seconds for done in found)
    # The batch that computes the prompt also yields the first token, so decoding made one fewer.
    decoded = sum(max(done.generated_tokens - 1, 0) for done in found)
    decode = sum(done.decode_seconds for done in found)
    first = sum(each.first_seconds for each in answers) / len(answers)
    row = [
        name,
        str(sum(done.prompt_tokens for done in found)),
        str(sum(done.cached_tokens for done in found)),
        _rate(computed, prefill),
        duration(round(first, 3)),
        str(sum(done.generated_tokens for done in found)),
        _rate(decoded, decode),
    ]
    if proposed:
        right = sum(done.accepted_tokens for done in found)
        row.append(f"{right} of {sum(done.proposed_tokens for done in found)}")
    return row


def _rate(tokens: int, seconds: float) -> str:
    if not tokens or not seconds:
        return ""
    rate = tokens / seconds
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def cache_text(context: int, turns: Sequence[Answered], tiers: Iterable[TierUse]) -> str:
    """Return tables of the context use, derived from the answers so far, and of the prefix cache."""
    parts = [section("Conversation", _conversation(context, turns))] if turns else []
    parts.append(section("Prefix cache", map(_tier, tiers)))
    return "\n".join(filter(None, parts)) or "Nothing is cached yet."


def _conversation(context: int, turns: Sequence[Answered]) -> Iterator[tuple[str, object]]:
    last = turns[-1].done
    held = last.prompt_tokens + last.generated_tokens - last.shifted_tokens
    yield "tokens", held
    yield "context", f"{context}, {max(context - held, 0)} left"
    yield "cached, of the last prompt", f"{last.cached_tokens} of {last.prompt_tokens}"
    for tier, count in last.cached_by_tier.items():
        if count:
            yield f"  in {tier}" if tier != "disk" else "  on disk", count
    dropped = sum(each.done.dropped_tokens for each in turns)
    shifted = sum(each.done.shifted_tokens for each in turns)
    if dropped:
        yield "dropped from prompts", dropped
    if shifted:
        yield "forgotten while answering", shifted


def _tier(use: TierUse) -> tuple[str, str, str, str]:
    place, whose = ("on disk", " for all models") if use.tier == "disk" else (f"in {use.tier}", "")
    room = f"{size_in_bytes(use.num_bytes)} of {size_in_bytes(use.max_bytes)}{whose}"
    return place, f"{use.num_blocks} block{'s' * (use.num_blocks != 1)}", f"{use.num_tokens} tokens", room
