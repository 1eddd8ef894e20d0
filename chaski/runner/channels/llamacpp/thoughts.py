"""Budgets of thoughts for llama.cpp: its answer ends there, and a second request continues it.

The second prompt consists of the first one, the text so far and the end of the thought. So it does not matter
which budgets a version of llama.cpp knows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, TypeAlias

from msgspec.structs import replace

from chaski.chat.prompts import Prepared
from chaski.errors import UnsupportedError
from chaski.runner.channels.llamacpp.images import ImagePrompt
from chaski.sample.lark import AnswerPrefix
from chaski.sample.thought_budget import ThoughtBudget, ends_of_thought, without_answer

__all__ = ["limited_pieces"]

_Piece: TypeAlias = Mapping[str, Any]
_Ask: TypeAlias = Callable[[Prepared], Generator[_Piece, None, None]]
_Encode: TypeAlias = Callable[[str], Sequence[int]]
# It stands for all tokens that end a thought.
_END = -1


def limited_pieces(
    prepared: Prepared, ask: _Ask, encode: _Encode, controls: Mapping[str, int]
) -> Iterator[_Piece]:
    """Yield the pieces of an answer, whose thoughts end with their budget if they have one.

    ask: starts an answer, and yields its pieces. encode: returns the ids of a text inside another one.
    controls: tokens that no text is made of, by spelling. Raises UnsupportedError for log-probabilities.
    """
    limits = prepared.limits
    if limits.format_thought is None or limits.reasoning_budget < 0:
        return ask(prepared)
    if prepared.sampling.logprobs:
        raise UnsupportedError(
            "the engine llama.cpp cannot return log-probabilities of an answer whose thoughts are limited; "
            "leave out logprobs, or the budget or level of thinking"
        )
    return _LimitedAnswer(prepared, limits.format_thought, ask, encode, controls).pieces()


class _LimitedAnswer:
    """An answer that several requests make."""

    def __init__(
        self,
        prepared: Prepared,
        prefix: AnswerPrefix,
        ask: _Ask,
        encode: _Encode,
        controls: Mapping[str, int],
    ) -> None:
        limits = prepared.limits
        self._prepared = prepared
        self._ask = ask
        self._encode = encode
        self._room = prepared.limit - len(prepared.prompt.tokens)
        end = next(ends_of_thought(prefix, limits.constraint is not None))
        ends = [without_answer(end, prefix), end] if prefix.may_call else [end]
        self._ends = [limits.reasoning_budget_message + text for text in ends]
        self._texts: list[bytes] = []
        self._budget = ThoughtBudget(
            prefix, limits.reasoning_budget, [[_END]], controls, self._texts.__getitem__
        )
        self._said = ""
        self._count = self._count_before = 0
        self._started, self._first = perf_counter(), 0.0

    def pieces(self) -> Iterator[_Piece]:
        """Yield the pieces of all requests, with the counts of tokens of the whole answer."""
        prepared = self._prepared
        while True:
            with closing(self._ask(prepared)) as stream:
                while not self._is_spent and (piece := next(stream, None)) is not None:
                    yield self._counted(piece)
            if not self._is_spent:
                return
            yield from self._ended_thought()
            if self._count >= self._room:
                yield self._cut()
                return
            prepared = self._continued()

    @property
    def _is_spent(self) -> bool:
        """Return whether the thought ends here; not if the context has no room for an answer after it."""
        if self._budget.forced is None:
            return False
        length = len(self._prepared.prompt.tokens) + self._count + len(self._encode(self._ends[0]))
        return length < self._prepared.context

    def _counted(self, piece: _Piece) -> _Piece:
        self._first = self._first or perf_counter()
        total = self._count_before + piece["tokens_predicted"]
        if piece["stop"]:
            timings = {"timings": self._timings()} if self._count_before else {}
            return {**piece, "tokens_predicted": total, **timings}
        for text in (piece["content"], *[""] * (total - self._count - 1)):
            self._texts.append(text.encode())
            self._budget.accept(len(self._texts) - 1)
        self._said += piece["content"]
        self._count = total
        return {**piece, "tokens_predicted": total}

    def _ended_thought(self) -> Iterator[_Piece]:
        """Yield the end of the thought; its first token has all of the text."""
        self._budget.accept(_END)
        text = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        self._said += text
        for token in self._encode(text)[: self._room - self._count]:
            self._count += 1
            yield {"content": text, "tokens": [token], "stop": False, "tokens_predicted": self._count}
            text = ""

    def _continued(self) -> Prepared:
        """Return the request for the rest of the answer, whose grammar begins after the thought."""
        self._count_before = self._count
        prompt, limits = self._prepared.prompt, self._prepared.limits
        tokens = [*prompt.tokens, *self._encode(self._said)]
        if isinstance(prompt, ImagePrompt):
            *pieces, last = prompt.pieces
            prompt = replace(prompt, pieces=(*pieces, f"{last}{self._said}"))
        return replace(
            self._prepared,
            prompt=replace(prompt, tokens=tokens),
            limit=len(tokens) + self._room - self._count,
            limits=replace(limits, format_thought=None),
        )

    def _cut(self) -> _Piece:
        """Return the end of an answer that has as many tokens as it may."""
        return {
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": "limit",
            "stopping_word": "",
            "tokens_predicted": self._count,
            "tokens_cached": 0,
            "truncated": False,
            "timings": self._timings(),
        }

    def _timings(self) -> Mapping[str, float]:
        first = self._first or perf_counter()
        return {
            "cache_n": 0,
            "prompt_ms": (first - self._started) * 1e3,
            "predicted_ms": (perf_counter() - first) * 1e3,
        }
