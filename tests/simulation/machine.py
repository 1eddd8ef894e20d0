"""The machine of simulated worlds: its memory, and what does not change from one world to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaski.chat import choice
from chaski.chat.formats import JinjaFormat
from chaski.chat.sources import TemplateSources
from chaski.ml import limits, machine
from chaski.ml.cpu import small_pages
from chaski.runner.engine import next_batch, prompt_timer
from chaski.runner.prefix import following, naming, tiers

__all__ = ["MEMORY", "Memory", "use_simulated_machine"]

_USUAL = 8 << 30
_BLOCK = 16


class Memory:
    """The free bytes of the machine."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.free = _USUAL

    @contextmanager
    def plenty(self) -> Iterator[None]:
        """Let all memory be free within the block."""
        free, self.free = self.free, _USUAL
        try:
            yield
        finally:
            self.free = free


MEMORY = Memory()


def use_simulated_machine() -> None:
    """Let chaski see this machine from now on, and keep short prefixes in small blocks."""
    place: Any = machine
    place._machine_memory = lambda: _USUAL
    place._free_memory = lambda: MEMORY.free
    place = limits
    place._text = lambda path: ""
    place = small_pages
    place._MAPS = Path("/nonexistent")
    place = naming
    place.BLOCK = _BLOCK
    place = tiers
    place._FEWEST = 1
    place = following
    place.LEAST = 4
    place = next_batch
    place._SLICE = place._WHOLE = 1  # each block of a restoration takes a step
    place = prompt_timer
    place._PROMPT = 1
    _keep_formats()


def _keep_formats() -> None:
    """Find the format of each template once, since worlds load the same models again and again."""
    known: dict[str, JinjaFormat] = {}
    found = choice._jinja_format

    def kept(sources: TemplateSources, source: str) -> JinjaFormat:
        key = repr(sources)
        if key not in known:
            known[key] = found(sources, source)
        return known[key]

    place: Any = choice
    place._jinja_format = kept
