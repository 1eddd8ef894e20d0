"""`AdapterTable`: the LoRA adapters that clients have added to a running server, each for one model.

Clients choose the paths, which may only lead to files in one folder that the server's owner sets. An adapter
is read and checked before it gets its name. The model's process loads it at its first use.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import AdapterNotFoundError, ModelNotFoundError, OptionError, UnsupportedError
from chaski.names import ModelName
from chaski.server.models.adapter_files import prepare_adapter

__all__ = ["AdapterTable", "ChosenAdapter", "ServedAdapter"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
_MOST = 1024


class ChosenAdapter(Struct, frozen=True):
    """An adapter that is applied to a request. `key` is its name in the process of the model."""

    name: str
    key: str
    path: Path
    scale: float = 1.0

    @classmethod
    def stored(cls, path: Path, scale: float = 1.0) -> ChosenAdapter:
        """Choose an adapter of the store by the path of its blob."""
        return cls(path.name, path.name, path, scale)


class ServedAdapter(Struct, frozen=True):
    """An adapter with a name.

    number   its number in llama.cpp's API
    base     the name of the model that it was made for
    weights  the file of that model's weights
    path     its GGUF file
    scale    its scale in requests to the base that choose no adapters; 0 to leave it out
    created  the time when it got its name, as returned by `time.time`
    """

    number: int
    name: str
    base: ModelName
    weights: Path
    path: Path
    scale: float
    created: float

    def chosen(self, scale: float = 1.0) -> ChosenAdapter:
        """Choose this adapter. Its key changes when its file is replaced."""
        return ChosenAdapter(self.name, f"{self.name}@{self.created}", self.path, scale)


class AdapterTable:
    """The adapters by name. Thread-safe."""

    def __init__(self, folder: Path | None = None) -> None:
        """Create a table of the adapters in `folder`; None if no adapters may be loaded."""
        self._folder = None if folder is None else folder.resolve()
        # The mapping is replaced and never changed, so that other threads may read it at any time.
        self._adapters: Mapping[str, ServedAdapter] = {}
        self._lock = Lock()
        self._count = 0
        self._converted: TemporaryDirectory[str] | None = None

    @property
    def all(self) -> Sequence[ServedAdapter]:
        """All adapters, the oldest first."""
        return sorted(self._adapters.values(), key=lambda adapter: adapter.number)

    def add(
        self, name: str, given: str, base: ModelName, weights: Path, replaces: bool = False
    ) -> ServedAdapter:
        """Add an adapter under a name.

        given: path in the folder of a GGUF file or a PEFT folder

        Raises UnsupportedError if no adapters may be loaded, OptionError if the name is invalid or in use,
        ModelNotFoundError if the file does not exist, and the errors of reading, converting and checking.
        """
        if not _NAME.fullmatch(name) or ".." in name:
            raise OptionError(f"lora_name may only contain letters, digits and '._-/': {name!r:.100}")
        self._check_free(name, replaces)
        path = self._found(given)
        made = self._path_for(path) if path.is_dir() else path
        prepare_adapter(path, made, weights, Path(given).name)
        with self._lock:
            self._check_free(name, replaces)
            if len(self._adapters) >= _MOST:
                raise OptionError(f"there are {_MOST} adapters already; unload some")
            before = self._adapters.get(name)
            number = self._count if before is None else before.number
            self._count += before is None
            found = ServedAdapter(number, name, base, weights, made, 0.0, time.time())
            self._adapters = {**self._adapters, name: found}
        return found

    def remove(self, name: str) -> ServedAdapter:
        """Remove an adapter by its name. Raises AdapterNotFoundError."""
        with self._lock:
            found = self._adapters.get(name)
            if found is None:
                raise AdapterNotFoundError(f"The lora adapter '{name:.200}' cannot be found.")
            self._adapters = {other: each for other, each in self._adapters.items() if other != name}
        return found

    def find(self, label: str) -> ServedAdapter | None:
        """Return the adapter that a request calls `NAME` or `base:NAME`; None if there is none."""
        if (found := self._adapters.get(label)) is not None:
            return found
        base, _, name = label.rpartition(":")
        found = self._adapters.get(name)
        try:
            return found if found is not None and ModelName.parse(base) == found.base else None
        except OptionError:
            return None

    def numbered(self, number: int, weights: Path) -> ServedAdapter:
        """Return the adapter with a number in llama.cpp's API. Raises AdapterNotFoundError."""
        for adapter in self._adapters.values():
            if adapter.number == number and adapter.weights == weights:
                return adapter
        raise AdapterNotFoundError(f"this model has no adapter {number}; see /lora-adapters")

    def of(self, weights: Path) -> Sequence[ServedAdapter]:
        """Return the adapters for models with these weights."""
        return [adapter for adapter in self.all if adapter.weights == weights]

    def set_scales(self, scales: dict[int, float]) -> None:
        """Set the scales of all adapters by number; unlisted ones get 0. Raises AdapterNotFoundError."""
        with self._lock:
            numbers = {adapter.number for adapter in self._adapters.values()}
            if unknown := sorted(scales.keys() - numbers):
                raise AdapterNotFoundError(f"there is no adapter {unknown[0]}; see /lora-adapters")
            self._adapters = {
                name: replace(adapter, scale=scales.get(adapter.number, 0.0))
                for name, adapter in self._adapters.items()
            }

    def close(self) -> None:
        """Delete the files that were converted from PEFT folders."""
        if self._converted is not None:
            self._converted.cleanup()

    def _check_free(self, name: str, replaces: bool) -> None:
        if name in self._adapters and not replaces:
            raise OptionError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True."
            )

    def _found(self, given: str) -> Path:
        """Return the file or folder that a request names inside the folder of adapters."""
        if self._folder is None:
            raise UnsupportedError(
                "this server loads no adapters by path; set CHASKI_ADAPTERS to the folder that contains them"
            )
        try:
            path = (self._folder / given).resolve()
            is_there = path.is_relative_to(self._folder) and path.exists()
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            raise ModelNotFoundError(
                f"there is no adapter {Path(given).name!r:.200} in the folder of adapters"
            )
        return path

    def _path_for(self, folder: Path) -> Path:
        """Return a new path for the file that is converted from a PEFT folder."""
        with self._lock:
            if self._converted is None:
                self._converted = TemporaryDirectory(prefix="chaski-adapters-")
            return Path(self._converted.name) / f"{folder.name}-{secrets.token_hex(8)}.gguf"
