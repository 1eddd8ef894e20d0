"""A sequence is the engine's unit of work: tokens in a slot. Subclasses use its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import count
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaski.chat.events import Event
from chaski.chat.groups import Groups, not_inside
from chaski.chat.image_rows import Images, attended_in, coordinates
from chaski.chat.marks import Holds
from chaski.errors import ChaskiError
from chaski.ml.ops import NUM_CHANCES
from chaski.model.output_rows import OutputRows
from chaski.runner.adapters.applied import AppliedAdapters
from chaski.runner.engine.images import ImagePart, image_part
from chaski.runner.engine.live import LiveSequence, TokenTotals
from chaski.runner.engine.outputs import Outputs
from chaski.runner.prefix.restored import NOTHING_RESTORED
from chaski.runner.prefix.slots import Slot

__all__ = ["Counts", "Sequence"]

_numbers = count()


class Counts(NamedTuple):
    """Tokens of a sequence; `accepted` ones are among the `proposed` ones."""

    prompt: int
    generated: int = 0
    dropped: int = 0
    proposed: int = 0
    accepted: int = 0


class Sequence(ABC):
    """Tokens that the engine computes in order, over several batches.

    The engine computes a batch while it hands out the results of the one before it. So `take` does only the
    work that the next batch depends on, and `write` does the rest.

    number       its number among all of this process
    came_at      when it was made, as of `time.perf_counter`
    num_cached   tokens that its slot held when it started
    tokens       all that are known, computed or not
    groups       those of them that are computed together
    images       those of them that are rows of images
    cache_salt   only prompts with the same salt reuse its cells
    adapters     the LoRA adapters that it is computed with; None for none
    may_store    True if its prefix may be kept in files
    holds        first tokens that the tiers hold, with the seconds from their last use
    restored     its tokens that were restored from the tiers
    breaks       positions at which a batch ends, since others go on from there
    events       those that its reader has not read yet; at last `Done`, `Outputs`, or the error that ended it
    is_running   True until its last `take`, or `cancel`: more of it is to be computed
    """

    __slots__ = (
        "adapters",
        "breaks",
        "cache_salt",
        "came_at",
        "events",
        "groups",
        "holds",
        "images",
        "is_running",
        "may_store",
        "num_cached",
        "number",
        "restored",
        "slot",
        "tokens",
    )

    slot: Slot

    def __init__(
        self, tokens: Iterable[int], groups: Groups = (), images: Images = (), cache_salt: str = ""
    ) -> None:
        self.number = next(_numbers)
        self.came_at = perf_counter()
        self.num_cached = 0
        self.tokens = list(tokens)
        self.groups = groups
        self.images = images
        self.cache_salt = cache_salt
        self.adapters: AppliedAdapters | None = None
        self.may_store = True
        self.holds: Holds = ()
        self.restored = NOTHING_RESTORED
        self.breaks: list[int] = []
        self.events: deque[Event | Outputs | ChaskiError] = deque()
        self.is_running = True

    def start(self, slot: Slot) -> None:
        """Take a slot, which may hold some of the tokens already."""
        self.slot = slot
        self.num_cached = len(slot.tokens)

    @property
    def counts(self) -> Counts:
        """The numbers of its tokens so far."""
        return Counts(len(self.tokens))

    @property
    def num_computed(self) -> int:
        """The number of tokens of its prompt that were computed so far."""
        counts = self.counts
        held = counts.prompt if counts.generated else len(self.slot.tokens)
        return max(0, min(held, counts.prompt) - self.num_cached)

    @property
    def totals(self) -> TokenTotals:
        """The tokens that it has added to the totals of the engine so far."""
        counts, restored = self.counts, self.restored
        cells = max(0, self.num_cached - restored.memory - restored.disk)
        cached = cells, restored.memory, restored.disk
        return TokenTotals(self.num_computed, counts.generated, *cached, *counts[2:])

    def live(self, state: str, now: float) -> LiveSequence:
        """Return its figures; `now` is the time as of `time.perf_counter`."""
        counts, slot = self.counts, getattr(self, "slot", None)
        return LiveSequence(
            number=self.number,
            slot=None if slot is None else slot.index,
            state=state,
            prompt_tokens=counts.prompt,
            cached_tokens=self.num_cached,
            computed_tokens=0 if slot is None else self.num_computed,
            generated_tokens=counts.generated,
            dropped_tokens=counts.dropped,
            proposed_tokens=counts.proposed,
            accepted_tokens=counts.accepted,
            seconds=now - self.came_at,
        )

    @property
    def adapter_key(self) -> str:
        """The key of its adapters. Only prompts with the same key reuse its cells."""
        return "" if self.adapters is None else self.adapters.key

    @property
    def second_text(self) -> int | None:
        """The position at which the second of two texts begins; None for a single one."""
        return None

    @property
    def can_take_over(self) -> bool:
        """True if it may reuse the tokens that a slot holds: it does not want the outputs of all of them."""
        return True

    @property
    def num_pending(self) -> int:
        """Tokens that can be computed next. One of them may be known only when the batch before is done."""
        return len(self.tokens) - len(self.slot.tokens)

    def share(self, max_tokens: int, max_outputs: int) -> int:
        """Return how many tokens it computes next, in a batch with this much room.

        An image that layers attend to begins a batch: tokens before it see another one.
        """
        begin = len(self.slot.tokens)
        end = begin + min(self.num_pending, max_tokens)
        if self.breaks:
            end = min((place for place in self.breaks if begin < place < end), default=end)
        if self.images:
            ahead = attended_in(self.images, range(begin + 1, end))
            end = ahead[0].positions.start if ahead else end
        count = not_inside(end, self.groups) - begin
        return count if self.num_outputs(count) <= max_outputs else 0

    def num_outputs(self, count: int) -> int:
        """Return the number of outputs of its next `count` tokens."""
        return len(self.outputs(len(self.slot.tokens), count))

    def images_for(self, begin: int, count: int) -> ImagePart:
        """Return what a batch of `count` tokens from `begin` on needs of its images."""
        positions = range(begin, begin + count)
        return image_part(self.images, positions, self.restored.positions, self.slot.index)

    def coordinates(self, begin: int, count: int, num_coordinates: int) -> npt.NDArray[np.int32]:
        """Return the coordinates of `count` tokens from `begin` on: (count, num_coordinates)."""
        return coordinates(self.images, range(begin, begin + count), num_coordinates)

    def known(self, begin: int, count: int) -> list[int]:
        """Return the tokens at `count` positions from `begin` on, proposed ones included."""
        return self.tokens[begin : begin + count]

    @property
    def is_speculating(self) -> bool:
        """True while some of the tokens that are computed are proposed ones, which may be rejected."""
        return False

    def is_foreseen(self, most: int, for_sure: bool) -> bool:
        """Return whether a plan with `most` top logits samples its next token, and nothing else is needed.

        `for_sure`: not where it is only likely. Asked where no model proposes tokens.
        """
        return False

    def chances(self, later: int, count: int) -> list[tuple[int, ...]]:
        """Return the numbers with which a plan samples `count` of its tokens, after `later` other ones."""
        return [(0,) * NUM_CHANCES] * count

    @property
    def full_context(self) -> range | None:
        """The positions to forget before the next token can be computed, if there are any."""
        return None

    @property
    def members(self) -> Items[Sequence]:
        """Other sequences that start and end with it, each in a separate slot."""
        return ()

    def require_slots(self, parallel: int) -> None:  # noqa: B027, one without members needs one slot
        """Raise OptionError if it and its members need more than `parallel` slots."""

    def join(self, others: Iterable[Sequence]) -> Sequence | None:
        """Return the one of other sequences that makes its events as well; None to compute it separately."""
        return None

    @property
    def is_open(self) -> bool:
        """True if its next input depends on outputs that are still to come."""
        return self.is_speculating or self.full_context is not None

    @property
    def origin(self) -> Slot | None:
        """The slot whose tokens its own must have before its next token is computed; None for its own."""
        return None

    def forked(self) -> None:  # noqa: B027, most have no origin
        """Its slot has the tokens of its origin."""

    def drop(self, positions: range) -> None:
        """Go on without the tokens at `positions`, as if they had never been."""
        raise AssertionError(f"{type(self).__name__} never outgrows its context")

    def cancel(self) -> None:
        """Its reader left: nothing more of it is computed."""
        self.is_running = False

    def fail(self, error: ChaskiError) -> None:
        """End with an error, which is the last that its reader gets."""
        self.is_running = False
        self.events.append(error)

    def restart(self) -> None:  # noqa: B027, most only go on
        """Begin again with an empty slot: all tokens are computed once more, with their outputs."""

    @abstractmethod
    def outputs(self, begin: int, count: int) -> Items[int]:
        """Return the positions, of `count` tokens from `begin` on, whose outputs it needs."""

    def num_top_logits(self, most: int) -> int:
        """Number of top logits to return with its next outputs, at most `most`."""
        return 0

    @abstractmethod
    def take(self, rows: OutputRows, top_logits: npt.NDArray[np.float32]) -> int:
        """Outputs of the next positions that it wants them of, to be fetched now or never.

        `top_logits` (n, 2, `num_top_logits`): the top logits in descending order, and their ids. Returns how
        many of the proposed tokens that were computed last are rejected.
        """

    def propose(self) -> None:  # noqa: B027, most propose nothing
        """Propose the next tokens. Called when all sequences of a batch have taken their outputs."""

    @abstractmethod
    def write(self) -> None:
        """Queue the events of the outputs taken since the last call. One thread at a time calls it."""
