"""JSON schemas of Python's types."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_origin

from msgspec import Struct

__all__ = ["type_schema"]


def type_schema(given: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a type; None for a value that is no type.

    Pydantic models, dataclasses, TypedDicts, msgspec Structs and types such as `list[int]` have a schema. An
    instance stands for its class. Raises TypeError or NameError for other types.
    """
    is_instance = isinstance(given, Struct) or (is_dataclass(given) and not isinstance(given, type))
    kind: Any = type(given) if is_instance else given
    for name in ("model_json_schema", "json_schema"):  # of Pydantic's models, and of its TypeAdapter
        if callable(make := getattr(kind, name, None)):
            return dict(make())
    if hasattr(kind, "__fields__") and callable(make := getattr(kind, "schema", None)):  # of Pydantic 1
        return dict(make())
    if not isinstance(kind, type) and get_origin(kind) is None:
        return None
    from msgspec.json import schema

    return schema(kind)
