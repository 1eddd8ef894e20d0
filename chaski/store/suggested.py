"""`suggested_models`: a short, dated list of well-known models to pull, shipped with the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["SuggestedModel", "Suggestions", "suggested_models"]

_FILE = Path(__file__).parents[1] / "models" / "suggested.json"

# The key/value cache of a usual context, and buffers. Rough: contexts and layers differ between models.
_OVERHEAD = 1.15
_LEAST_OVERHEAD = 400_000_000


class SuggestedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model to pull.

    name: its name in Ollama's registry. family: its architecture. size: bytes of the download.
    parameters, quantization: as `/api/tags` shows them. good_for: its purpose in a line.
    """

    name: str
    title: str
    family: str
    parameters: str
    quantization: str
    size: int
    capabilities: tuple[str, ...]
    license: str
    good_for: str

    @property
    def memory(self) -> int:
        """Estimated bytes of memory with a usual context; the exact need is known once its file is here."""
        return max(int(self.size * _OVERHEAD), self.size + _LEAST_OVERHEAD)


class Suggestions(Struct, frozen=True, forbid_unknown_fields=True):
    """The list with the month in which it was made, as YYYY-MM."""

    date: str
    models: tuple[SuggestedModel, ...]


@cache
def suggested_models() -> Suggestions:
    """Read the list."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Suggestions)
