"""A model's `config.json`: values of a known kind, or an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from chaski.errors import FormatError, ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.regular_files import read_regular

__all__ = ["Config", "read_config", "read_json"]

MAX_JSON_BYTES = 256 << 20
# A vocabulary of a million tokens with all its merges has half as many.
MAX_JSON_VALUES = 8_000_000
_REQUIRED: Final = object()
_LARGEST = 2**31 - 1
_MOST_AS_FLOAT = 2**1000

T = TypeVar("T", int, float, bool, str)
D = TypeVar("D")


class Config:
    """The settings of a model or of one of its parts. A null value counts as absent.

    most: the upper limit of counts such as layers, because each layer has at least one tensor.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], most: int = _LARGEST) -> None:
        self.path = path
        self.values = values
        self._most = most

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """Return the value of `key`. Raises ModelError if it is missing or of another kind.

        Integers are accepted as floats."""
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ModelError(f"{self.path}: {key!r} is missing")
            return default
        if kind is float and type(value) is int and abs(value) <= _MOST_AS_FLOAT:
            return float(value)
        if type(value) is not kind:
            raise ModelError(f"{self.path}: {key!r} is {value!r:.80}, not {kind.__name__}")
        if kind is int and not -_LARGEST <= value <= _LARGEST:
            raise ModelError(f"{self.path}: {key!r} is {value}; no size is as large")
        if kind is float and not math.isfinite(value):
            raise ModelError(f"{self.path}: {key!r} is {value}, which is not a number")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return the count under `key`, at least 1, of parts that have tensors. Raises ModelError."""
        value = self.get(key, int) if default is None else self.get(key, int, default)
        if value < 1:
            raise ModelError(f"{self.path}: {key!r} is {value}; there must be one at least")
        if value > self._most:
            raise ModelError(f"{self.path}: {key!r} is {value}, but there are only {self._most} tensors")
        return value

    def within(self, most: int) -> Config:
        """Return the same settings for a checkpoint with `most` tensors."""
        return Config(self.path, self.values, most)

    def list(self, key: str, kind: type[T] | None = None) -> list[Any]:
        """Return the list under `key`, checked as in `get`, or [] if absent. Raises ModelError."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise ModelError(f"{self.path}: {key!r} is {value!r:.80}, not a list")
        if kind is None:
            return value or []
        return [self._item(f"{key}[{index}]", each, kind) for index, each in enumerate(value or [])]

    def _item(self, name: str, value: Any, kind: Any) -> Any:
        return Config(self.path, {name: value}).get(name, kind)

    def part(self, key: str) -> Config:
        """Return the settings under `key`, empty if absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self.path}: {key!r} is {value!r:.80}, not an object")
        return Config(self.path, value or {}, self._most)

    def over(self, other: Config) -> Config:
        """Return these settings, completed by those of `other`."""
        return Config(self.path, {**other.values, **self.values}, self._most)

    def require(self, key: str, value: Any) -> None:
        """Check like `expect`, for a setting that must be present."""
        if self.values.get(key) != value:
            found = self.values.get(key)
            raise UnsupportedError(f"{self.path}: {key!r} is {found!r:.80}; only {value!r} can be converted")

    def expect(self, key: str, *allowed: Any) -> None:
        """Raise UnsupportedError for a setting whose computation GGUF cannot express.

        An absent value means the first of `allowed`.
        """
        value = self.values.get(key)
        if (allowed[0] if value is None else value) not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise UnsupportedError(
                f"{self.path}: {key!r} is {value!r:.80}; only {choices:.200} can be converted"
            )


def read_config(folder: Path) -> Config:
    """Read the configuration of the checkpoint in `folder`. Raises ModelNotFoundError if it is missing."""
    path = folder / "config.json"
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such file; a checkpoint folder has one")
    values = read_json(path)
    if "llm_config" in values:  # the text model's part in checkpoints of InternVL's authors
        values["text_config"] = values.pop("llm_config")
    return Config(path, values)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file, or {} if the file is missing. Raises FormatError."""
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FormatError(f"{path}: more than {MAX_JSON_BYTES} bytes")
        value = load_json(read_regular(path), MAX_JSON_VALUES)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: not a JSON object")
    return value
