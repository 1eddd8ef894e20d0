"""`Catalog`: the models that requests may name, and what their files say about them.

Names come from strangers. They lead to manifests of the store and to bundled models, never to other files.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from chaski.errors import ModelNotFoundError, OptionError
from chaski.names import ModelName
from chaski.runner.loading.model_info import ModelInfo
from chaski.store.model import StoredModel, read_model
from chaski.store.store import Entry, Store

__all__ = ["Catalog", "Found"]

_MAX_INFOS = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A model that a request names. label: the name as the request has it."""

    label: str
    name: ModelName
    model: StoredModel
    entry: Entry


class Catalog:
    """The models that requests may name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._infos: OrderedDict[tuple[Path, str], ModelInfo] = OrderedDict()

    def find(self, label: str) -> Found:
        """The model of a name. Raises ModelNotFoundError, OptionError, or what a damaged one raises."""
        if not label:
            raise OptionError("model is required")
        name = _parse(label)
        if self.store.locate(name) is None:
            raise ModelNotFoundError(f"model '{label:.200}' not found")
        entry = self.store.entry(name)
        return Found(label, entry.name, read_model(self.store, entry), entry)

    def look_up(self, label: str) -> tuple[Found, ModelInfo]:
        """`find`, and what its file says."""
        found = self.find(label)
        return found, self.info(found)

    def info(self, found: Found) -> ModelInfo:
        """Return the properties of a model. Raises GGUFError, UnsupportedError."""
        key = (found.model.path, str(found.entry.digest))
        if key not in self._infos:
            self._infos[key] = ModelInfo(found.model)
            while len(self._infos) > _MAX_INFOS:
                self._infos.popitem(last=False)
        self._infos.move_to_end(key)
        return self._infos[key]


def _parse(label: str) -> ModelName:
    try:
        return ModelName.parse(label)
    except OptionError:
        raise OptionError("invalid model name") from None
