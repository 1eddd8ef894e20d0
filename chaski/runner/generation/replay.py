"""`Replay`: an answer that is known already, computed again as one prompt, with each step sampled again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Items
from copy import copy
from itertools import product

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ChaskiError
from chaski.model.output_rows import OutputRow, OutputRows
from chaski.receipts.chain import next_link, top_bytes
from chaski.receipts.receipt import End, Receipt
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.runner.receipts.draft import shared_rule
from chaski.sample import Sampled, Sampler
from chaski.sample.pcg import Pcg

__all__ = ["Difference", "Replay", "ending"]

# The reference rounds otherwise, so its logits differ a little. A step agrees with it if the token comes out
# with one of these numbers added to its logit, and to the random number of 24 bits: the bounds between tokens
# move when all of their logits do.
_RAISES = (0.0, 0.0625, 0.125, 0.25, 0.5, -0.0625, -0.125)
_SHIFTS = (0, 2**24 // 64, -(2**24) // 64, 2**24 // 32, -(2**24) // 32)


class Difference(Struct, frozen=True):
    """A difference between a receipt and what was found, both as texts.

    place  a field of the receipt, or "step N", counted from 0
    """

    place: str
    receipt: str
    found: str


class Replay(Sequence):
    """The prompt and the output of a receipt, whose logits are those of the steps.

    Each row of logits gives a token by the options of the receipt, and the recorded token goes on to the
    next. Steps that are not compared have no row. It ends with the last step to compare, or the first that
    differs.

    difference  the first step that differs, if one does
    num_checked number of steps that were compared and are the same
    num_near    of these, those that only agree within the tolerance of a backend with another rule
    """

    __slots__ = (
        "_allowed",
        "_first",
        "_grammar",
        "_is_exact",
        "_link",
        "_receipt",
        "_sampler",
        "_step",
        "_steps",
        "_thoughts",
        "difference",
        "num_checked",
        "num_near",
    )

    def __init__(self, request: GenerationRequest, receipt: Receipt, steps: Items[int], rule: str) -> None:
        """steps: those to compare, in order. rule: that of the backend which computes."""
        super().__init__([*request.prompt, *receipt.output[: steps[-1] if steps else 0]])
        self.adapters = request.adapters
        self.may_store = False
        self._first = len(request.prompt) - 1
        self._receipt = receipt
        self._steps = steps
        self._is_exact = shared_rule(rule) == receipt.rule
        self._sampler = Sampler(request.sampling, request.rules)
        self._sampler.begin(request.prompt)
        self._grammar, self._thoughts = request.grammar, request.thoughts
        self._allowed = None if self._grammar is None else self._grammar.allowed()
        self._link = receipt.head()
        self._step = self.num_checked = self.num_near = 0
        self.difference: Difference | None = None

    @property
    def can_take_over(self) -> bool:
        return False

    def share(self, max_tokens: int, max_outputs: int) -> int:
        begin = len(self.slot.tokens)
        ahead = self._places(begin, len(self.tokens))
        if len(ahead) > max_outputs:
            max_tokens = min(max_tokens, ahead[max_outputs] - begin)
        return super().share(max_tokens, max_outputs)

    def outputs(self, begin: int, count: int) -> Items[int]:
        return self._places(begin, begin + count)

    def _places(self, begin: int, end: int) -> Items[int]:
        """Return the positions of the steps to compare. After a restart, those of the remaining ones."""
        first = max(bisect_left(self._steps, begin - self._first), self.num_checked)
        return [
            self._first + step for step in self._steps[first : bisect_left(self._steps, end - self._first)]
        ]

    def num_top_logits(self, most: int) -> int:
        needs_all = self._grammar is not None or self._receipt.chain.top_logits or not self._is_exact
        return 0 if needs_all else self._sampler.num_top_logits(most)

    def take(self, rows: OutputRows, top_logits: npt.NDArray[np.float32]) -> int:
        for index in range(len(rows)):
            try:
                self._advance(rows.row(index), top_logits[index])
            except ChaskiError as error:
                self.fail(error)
            if not self.is_running:
                break
        self.is_running = self.is_running and self.num_checked < len(self._steps)
        return 0

    def write(self) -> None:
        if not self.is_running and not self.events:
            self.events.append(Outputs(np.zeros((0, 0), np.float32)))

    def _advance(self, row: OutputRow, top_logits: npt.NDArray[np.float32]) -> None:
        """Pass over the steps that are left out, compare the next one, and continue after its token."""
        while self._step < self._steps[self.num_checked]:
            if self._forced() is None:
                self._sampler.skip()
            self._accept()
        token, forced = self._receipt.output[self._step], self._forced()
        found = self._sampled(row, top_logits, token) if forced is None else forced
        if found != token:
            self._differ(f"token {token}", f"token {found}")
        elif self._has_link(row, token):
            self.num_checked += 1
            self._accept()

    def _forced(self) -> int | None:
        return None if self._thoughts is None else self._thoughts.forced

    def _sampled(self, row: OutputRow, top_logits: npt.NDArray[np.float32], token: int) -> int:
        """Return the token that the step gives. Under another rule, `token` counts if it is near enough."""
        before = self._sampler.random_numbers
        found = self._sampler.sample(row, self._allowed, top_logits).token_id
        if found == token or self._is_exact:
            return found
        after = self._sampler.random_numbers
        is_near = any(self._gives(row, token, *change, before) for change in product(_RAISES, _SHIFTS))
        self._sampler.random_numbers = after
        self.num_near += is_near
        return token if is_near else found

    def _gives(self, row: OutputRow, token: int, added: float, shift: int, random: Pcg) -> bool:
        """Return whether a step gives `token` if its logit and the random number change by this much."""
        logits = row.fetch().copy()
        logits[token] += np.float32(added)
        self._sampler.random_numbers = _Moved(random, shift)
        return self._sampler.sample(logits, self._allowed).token_id == token

    def _has_link(self, row: OutputRow, token: int) -> bool:
        """Return whether the link of the step is that of the receipt, if its chain covers logits."""
        chain = self._receipt.chain
        if chain.links is None or not self._is_exact:
            return True
        before = bytes.fromhex(chain.links[self._step - 1]) if self._step else self._link
        link = next_link(before, token, top_bytes(row.fetch(), chain.top_logits)).hex()
        if link != chain.links[self._step]:
            self._differ(f"link {chain.links[self._step]}", f"link {link}, from other logits")
        return link == chain.links[self._step]

    def _accept(self) -> None:
        """Continue after the recorded token."""
        token = self._receipt.output[self._step]
        self._step += 1
        self._sampler.accept(token)
        if self._thoughts is not None:
            self._thoughts.accept(token)
        if self._grammar is not None:
            self._grammar.accept(token)
            if self._step < len(self._receipt.output):
                self._allowed = self._grammar.allowed()

    def _differ(self, said: str, found: str) -> None:
        self.is_running = False
        self.difference = Difference(f"step {self._step}", said, found)


class _Moved(Pcg):
    """Random numbers with a constant added."""

    def __init__(self, random: Pcg, shift: int) -> None:
        self._random = copy(random)
        self._shift = shift

    def next_24(self) -> int:
        return min(max(self._random.next_24() + self._shift, 0), 2**24 - 1)


def ending(request: GenerationRequest, receipt: Receipt) -> tuple[int, End | None]:
    """Return after how many tokens of its output an answer ends, and why; None if it would continue."""
    pieces, decoder = PieceStream(request.stop, request.keeps_stop), request.decoder
    assert decoder is not None, "answers are texts"
    limit, least = (
        request.limit - len(request.prompt),
        0 if request.rules is None else request.rules.min_tokens,
    )
    count, reason = 0, None
    for count, token in enumerate(receipt.output, 1):
        is_end = token in request.end_ids
        if not is_end or token in request.shown_ends:
            _, is_stopped = pieces.feed(TokenText(decoder.feed(token), Sampled(token)), count > least)
            if is_stopped:
                return count, End(reason="stop", stop=pieces.stop_string)
        if is_end or count >= limit:
            reason = "stop" if is_end else "length"
            break
    else:
        reason = "length" if count >= limit else None
    if reason is None:
        return count, None
    pieces.flush(decoder.flush())
    if pieces.stop_string is not None:
        return count, End(reason="stop", stop=pieces.stop_string)
    return count, End(reason="stop" if reason == "stop" else "length")
