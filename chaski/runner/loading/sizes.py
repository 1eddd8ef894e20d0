"""The sizes that a model is loaded with: those that were asked for, else defaults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import OptionError
from chaski.kvcache import CacheSize
from chaski.ml.backend import ByDevice
from chaski.ml.machine import usable_processors
from chaski.options import is_integer

__all__ = [
    "LEAST_CONTEXT",
    "USUAL_BATCH",
    "WHOLE",
    "SizeWishes",
    "Sizing",
    "at_least",
    "cache_size",
    "context_size",
    "thread_count",
    "usual_context",
    "usual_texts",
]

_log = logging.getLogger(__name__)

WHOLE = "the model's own"
"""The reason for a context of all tokens that a model was trained for, in words."""

USUAL_BATCH = 512
"""Default number of tokens computed at once; embedding models compute a whole text."""

LEAST_CONTEXT = 4096
"""No context is chosen shorter than this, unless the model was made for a shorter one."""

# The prompt of an agent with its tools has 15,000 to 30,000 tokens.
_ENOUGH = 32_768
# A longer context takes at most one in this many bytes of a device that has no room for all weights.
_SCARCE = 8
# Tables of cells take a few bytes for each token of the context, used or not.
_MOST_CHOSEN = 262_144
_STEP = 1024
_FEW_SEQUENCES = 4
# Positions and cells are 32-bit integers in native code; all sequences share the cells.
_MAX_CELLS = 1 << 30
_FEW_THREADS, _THREADS_EACH = 16, 4


def context_size(path: Path, trained: int, asked: int, most: int | None = None) -> int:
    """Return the context that a user asks for. It may exceed the trained one, with a warning.

    most: the limit of a model that has a row for each position.
    """
    at_least("context", asked, 1)
    if most is not None and asked > most:
        _log.warning("%s knows %d positions: the context is %d, not %d", path.name, most, most, asked)
        return most
    if asked > trained:
        _log.warning(
            "%s was made for %d tokens: beyond them a context of %d gives poor text",
            path.name,
            trained,
            asked,
        )
    return asked


class SizeWishes(Struct, frozen=True):
    """The size that a caller wants where memory decides about the size.

    needed_context  tokens that the context must hold; None for the usual ones
    most_parallel   sequences, if memory suffices and no number of them is set
    claimed_memory  bytes of the host that others will take, and that count as unavailable
    """

    needed_context: int | None = None
    most_parallel: int = 1
    claimed_memory: int = 0


class Sizing(Struct, frozen=True):
    """The limits within which memory decides about the size of a cache whose context is not set.

    longest    the longest context
    least      the shortest context; 4,096, or the number of tokens that a request needs
    parallels  numbers of sequences, the preferred one first
    num_batch  tokens of a batch
    is_scarce  weights that have no room on a fast device are on a slower one
    """

    longest: int
    least: int
    parallels: Sequence[int]
    num_batch: int = USUAL_BATCH
    is_scarce: bool = False

    @classmethod
    def of(cls, trained: int, needed: int | None, parallels: Sequence[int], num_batch: int) -> Sizing:
        """Return the limits for a model that was trained for `trained` tokens.

        needed    tokens that a request needs; None for no such request
        """
        least = min(trained, max(LEAST_CONTEXT, needed or 0))
        return cls(max(least, min(trained, _MOST_CHOSEN)), least, tuple(parallels), num_batch)

    @property
    def enough(self) -> int:
        """A context that an agent can use, or the longest one."""
        return max(self.least, min(self.longest, _ENOUGH))

    def scarce(self) -> Sizing:
        """Return the limits where a longer context takes memory from weights, which have too little of it."""
        return replace(self, longest=self.enough, is_scarce=True)

    def choose(
        self, cache_bytes: Callable[[CacheSize], ByDevice], left: ByDevice, available: ByDevice
    ) -> CacheSize:
        """Return the size for a model, of whose `available` bytes on each device `left` are left.

        `cache_bytes` returns the bytes of the caches of a size. More sequences and longer contexts than an
        agent needs take at most half of what is left. A single context of that length takes up to 7/8: an
        eighth is for the prefix cache. Who wishes for many sequences wants throughput: they take up to 7/8,
        and are preferred to longer contexts. Where memory is scarce, a context longer than `least` takes at
        most an eighth of a device's memory. The context is never shorter than `least`, whether it fits or
        not.
        """
        if self.is_scarce:
            smallest = cache_bytes(self._size(self.parallels[-1], self.least))
            left = {
                device: min(num_bytes // 8 * 7, smallest.get(device, 0) + available[device] // _SCARCE)
                for device, num_bytes in left.items()
            }
            sizes = (self._longest(each, self.longest, cache_bytes, left) for each in self.parallels)
            whole = (size for size in sizes if size is not None and size.capacity == self.longest)
            parallel = self.parallels[-1]
            return (
                next(whole, None)
                or self._longest(parallel, self.longest, cache_bytes, left)
                or self._size(parallel, self.least)
            )
        usual = {device: num_bytes // 2 for device, num_bytes in left.items()}
        most = {device: num_bytes // 8 * 7 for device, num_bytes in left.items()}
        are_many = self.parallels[0] > _FEW_SEQUENCES
        enough = self.least if are_many else self.enough
        for parallel in self.parallels:
            size = self._longest(parallel, self.longest, cache_bytes, most if are_many else usual)
            if size is not None and size.capacity >= enough:
                return size
        parallel = self.parallels[-1]
        longest = max(enough, usual_context(self.longest, self.least))
        found = self._longest(parallel, longest, cache_bytes, most)
        return found or self._size(parallel, self.least)

    def below(self, size: CacheSize) -> Sizing | None:
        """Return the limits for another try where a chosen size did not fit; None if it was the smallest."""
        longest = max(self.least, size.capacity // 2)
        parallels = [each for each in self.parallels if each <= size.sequences]
        if longest < size.capacity:
            return replace(self, longest=longest, parallels=parallels)
        return replace(self, parallels=parallels[1:]) if len(parallels) > 1 else None

    def reason(self, size: CacheSize, trained: int) -> str:
        """Return in words why a size was chosen."""
        if size.capacity >= trained:
            return WHOLE
        if self.is_scarce and size.capacity >= _ENOUGH:
            return f"more would take memory from the weights; the model's own is {trained:,}"
        if size.capacity >= _MOST_CHOSEN:
            return f"the longest that is chosen; the model's own is {trained:,}"
        return f"what the memory allows; the model's own is {trained:,}"

    def _longest(
        self, parallel: int, longest: int, cache_bytes: Callable[[CacheSize], ByDevice], limits: ByDevice
    ) -> CacheSize | None:
        """Return the longest size up to `longest` whose caches fit into limits; None if none does."""

        def fits(context: int) -> bool:
            needed = cache_bytes(self._size(parallel, context))
            return all(num_bytes <= limits.get(device, 0) for device, num_bytes in needed.items())

        longest = min(longest, _MAX_CELLS // parallel)
        if longest < self.least or not fits(self.least):
            return None
        if fits(longest):
            return self._size(parallel, longest)
        low, high = self.least // _STEP, -(-longest // _STEP)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle * _STEP) else (low, middle)
        return self._size(parallel, max(self.least, low * _STEP))

    def _size(self, parallel: int, context: int) -> CacheSize:
        return cache_size(parallel, context, self.num_batch)


def usual_context(trained: int, needed: int | None = None) -> int:
    """Return the context where memory does not decide about it.

    A request that needs more gets as much again, since conversations grow.
    """
    return min(trained, LEAST_CONTEXT if needed is None or needed <= LEAST_CONTEXT else 2 * needed)


def usual_texts(context: int) -> int:
    """The texts that a model whose tokens all see each other computes together, where no number is given.

    Weights are unpacked once for a batch. Texts are shorter than `context`, so more of them fill a batch than
    would fit at their longest; but their room takes no more than that of four batches.
    """
    return max(1, 4 * USUAL_BATCH // context)


def cache_size(parallel: int, context: int, num_batch: int) -> CacheSize:
    """Return the size of a cache for `parallel` sequences of `context` tokens, with a batch that fits all.

    Raises OptionError for invalid sizes.
    """
    parallel = at_least("parallel", parallel, 1)
    if parallel * context > _MAX_CELLS:
        each = f" for each of {parallel} sequences" if parallel > 1 else ""
        raise OptionError(
            f"context = {context} tokens{each} is more than the {_MAX_CELLS // parallel} that can be "
            "addressed; use a smaller context"
        )
    num_batch = min(at_least("num_batch", num_batch, parallel), parallel * context)
    return CacheSize(parallel, context, num_batch)


def thread_count(asked: int | None, usual: int | None) -> int | None:
    """Return the number of threads to compute on; None for the default. Raises OptionError.

    A few more threads than processors are slow, but allowed with a warning, since recipes come from other
    machines; many more are refused as a mistake.
    """
    threads = usual if asked is None else asked
    if threads is None:
        return None
    processors = usable_processors()
    most = max(_FEW_THREADS, _THREADS_EACH * processors)
    if at_least("threads", threads, 1) > most:
        raise OptionError(f"threads = {threads} must be at most {most}: there are {processors} processors")
    if threads > processors:
        _log.warning("%d threads on %d processors wait for each other: fewer are faster", threads, processors)
    return threads


def at_least(name: str, value: int, smallest: int) -> int:
    """Return the value. Raises OptionError if it is not a whole number, or too small."""
    if not is_integer(value) or value < smallest:
        raise OptionError(f"{name} = {value!r} must be a whole number of at least {smallest}")
    return value
