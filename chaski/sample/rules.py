"""Rules on tokens: options on texts and ends, as token ids of one vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

__all__ = ["TokenRules", "forbidden"]


class TokenRules(Struct, frozen=True, kw_only=True):
    """Tokens that may not be chosen, and the places where they may not.

    suppressed  tokens that the file of the model excludes from all answers
    never      tokens that are never chosen, unless nothing else is left
    end_ids    tokens that are not among the first `min_tokens`
    bad_words  sequences of tokens that the answer never completes
    breakers   texts that end a repetition, see `chaski.sample.dry`
    spell      returns the bytes of a token, to look for breakers
    """

    suppressed: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    breakers: tuple[bytes, ...] = ()
    spell: Callable[[int], bytes] = lambda token_id: b""

    def ends(self, num_chosen: int) -> list[int]:
        """Return the tokens that would end the answer too early after `num_chosen` tokens."""
        if num_chosen < self.min_tokens:
            return sorted(self.never | self.end_ids)
        return sorted(self.never)


def forbidden(bad_words: Sequence[Sequence[int]], answer: Sequence[int]) -> list[int]:
    """Return the tokens that would complete a forbidden sequence, as vLLM counts."""
    return [
        word[-1]
        for word in bad_words
        if len(word) <= len(answer) + 1 and list(answer[len(answer) - len(word) + 1 :]) == list(word[:-1])
    ]
