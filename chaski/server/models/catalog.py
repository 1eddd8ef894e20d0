"""`Catalog`: the models that requests may name, with the properties that their files contain.

Clients choose the names, which lead to manifests of the store and to bundled models, never to other files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from chaski.chat.adapter_choices import AdapterChoice
from chaski.errors import AdapterNotFoundError, ChaskiError, ModelNotFoundError, OptionError
from chaski.names import ModelName
from chaski.runner.loading.descriptions import summary_of
from chaski.runner.loading.model_info import ModelInfo
from chaski.server.models.adapter_table import AdapterTable, ChosenAdapter, ServedAdapter
from chaski.store.listing import Summary
from chaski.store.model import StoredModel, read_model
from chaski.store.store import Entry, Store

__all__ = ["Catalog", "Found"]

_MAX_INFOS = 64


class Found(Struct, frozen=True):
    """A model that a request names.

    label: the name as written in the request
    adapter: the adapter if the name is that of an adapter, whose base is then `model`; otherwise None
    """

    label: str
    name: ModelName
    model: StoredModel
    entry: Entry
    adapter: ServedAdapter | None = None

    @property
    def adapters(self) -> list[ChosenAdapter]:
        """The adapters that the name implies: those of the stored model, then `adapter`."""
        found = [ChosenAdapter.stored(path) for path in self.model.adapters]
        return found if self.adapter is None else [*found, self.adapter.chosen()]


class Catalog:
    """The models that requests may name. A model of the store takes precedence over an adapter."""

    def __init__(self, store: Store, adapters: AdapterTable | None = None) -> None:
        self.store = store
        self.adapters = adapters or AdapterTable()
        self._infos: OrderedDict[tuple[Path, str], ModelInfo] = OrderedDict()
        self._summaries: dict[str, Summary] = {}

    def find(self, label: str) -> Found:
        """Return the model of a name. Raises ModelNotFoundError, OptionError, errors of damaged models."""
        if not label:
            raise OptionError("model is required")
        adapter = None
        try:
            name = ModelName.parse(label)
            is_stored = self.store.locate(name) is not None
        except OptionError:
            is_stored = False
        if not is_stored:
            if (adapter := self.adapters.find(label)) is None:
                _parse(label)
                raise ModelNotFoundError(f"model '{label:.200}' not found")
            name = adapter.base
        entry = self.store.entry(name)
        found = Found(label, entry.name, read_model(self.store, entry), entry, adapter)
        if adapter is not None and adapter.weights != found.model.path:
            raise ModelNotFoundError(
                f"{name.short} has other weights now; load the adapter '{label:.200}' again"
            )
        return found

    def chosen(self, choices: Sequence[AdapterChoice], found: Found) -> list[ChosenAdapter]:
        """Return the adapters that a request chooses by their names, or by names of models with adapters.

        Raises AdapterNotFoundError.
        """
        chosen = []
        for choice in choices:
            served = self.adapters.find(choice.name)
            if served is not None and served.weights == found.model.path:
                chosen.append(served.chosen(choice.scale))
                continue
            try:
                paths = self.find(choice.name).model.adapters
            except (ModelNotFoundError, OptionError):
                paths = ()
            if not paths:
                raise AdapterNotFoundError(f"{found.label} has no adapter '{choice.name:.200}'")
            chosen += [ChosenAdapter.stored(path, choice.scale) for path in paths]
        return chosen

    def state(self, found: Found) -> tuple[Path, int] | None:
        """Return the file of a model's initial state and its modification time in ns; None if it has none."""
        path = self.store.state_path(found.name)
        try:
            return path, path.stat().st_mtime_ns
        except OSError:
            return None

    def look_up(self, label: str) -> tuple[Found, ModelInfo]:
        """Return the result of `find` and the properties of the model. Raises the errors of both."""
        found = self.find(label)
        return found, self.info(found)

    def info(self, found: Found) -> ModelInfo:
        """Return the properties of a model. Raises GGUFError, UnsupportedError."""
        key = (found.model.path, str(found.entry.digest))
        info = self._infos.pop(key, None)
        if info is None:
            self.forget_deleted()
            info = ModelInfo(found.model)
        self._infos[key] = info  # as the last one
        while len(self._infos) > _MAX_INFOS:
            self._infos.popitem(last=False)
        return info

    def forget_deleted(self) -> None:
        """Drop the properties of deleted models.

        Their tokenizers keep the files open, so that the disk space would stay occupied.
        """
        for key in list(self._infos):
            if not key[0].exists():
                self._infos.pop(key, None)

    def summary(self, entry: Entry) -> Summary:
        """Return the properties of a model of the store that lists show; empty if its files are damaged."""
        key = str(entry.digest)
        if key not in self._summaries:
            try:
                found = Found("", entry.name, read_model(self.store, entry), entry)
                self._summaries[key] = summary_of(self.info(found))
            except ChaskiError:
                return Summary()
        return self._summaries[key]


def _parse(label: str) -> ModelName:
    try:
        return ModelName.parse(label)
    except OptionError:
        raise OptionError("invalid model name") from None
