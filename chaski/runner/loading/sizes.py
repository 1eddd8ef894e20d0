"""The sizes that a model is loaded with: those that were asked for, else defaults."""

from __future__ import annotations

import logging
from pathlib import Path

from chaski.errors import OptionError
from chaski.kvcache import CacheSize
from chaski.ml.machine import usable_processors
from chaski.options import is_integer

__all__ = ["USUAL_BATCH", "at_least", "cache_size", "context_size", "thread_count", "usual_texts"]

_log = logging.getLogger(__name__)

USUAL_BATCH = 512
"""Default number of tokens computed at once; embedding models compute a whole text."""

_DEFAULT_CONTEXT = 4096
# Positions and cells are 32-bit integers in native code; all sequences share the cells.
_MAX_CELLS = 1 << 30
_FEW_THREADS, _THREADS_EACH = 16, 4


def context_size(
    path: Path, trained: int, asked: int | None, usual: int | None, most: int | None = None
) -> int:
    """Tokens that a sequence may hold. Never more than the model was made for, unless that is asked for.

    most: the limit of a model that has a row for each position.
    """
    if asked is None:
        return min(trained, at_least("num_ctx", usual or _DEFAULT_CONTEXT, 1))
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
