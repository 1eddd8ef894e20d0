"""Agreement of two versions of chaski on the messages between a server and its replicas.

Each end describes the messages that it knows. Versions understand each other if one of them only has more:
fields with defaults after the others, or kinds of calls. Both then use what the older one knows: it ignores
further fields, and it is not sent further calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self, get_args, get_type_hints

from msgspec import NODEFAULT, Struct, field
from msgspec.structs import fields

from chaski import __version__
from chaski.runner.channels.messages import ModelCall, ModelReply
from chaski.runner.channels.worker.codec import WireMessage

__all__ = ["Messages", "difference"]


class Field(Struct, frozen=True, array_like=True):
    """A field of a message: its name, its type as it is written, and whether it may be missing."""

    name: str
    type: str
    is_optional: bool


class Kind(Struct, frozen=True):
    """A kind of values in messages. `is_array`: it is sent as an array, so the order of its fields counts."""

    fields: tuple[Field, ...]
    is_array: bool


class Messages(Struct, frozen=True):
    """The messages that a version knows.

    calls    names of the calls that its replicas answer
    replies  names of their replies
    kinds    by name, of messages and of the values in them
    """

    version: str
    calls: frozenset[str]
    replies: frozenset[str]
    kinds: Mapping[str, Kind] = field(default_factory=dict)

    @classmethod
    @cache
    def own(cls) -> Self:
        """Return the messages of this version."""
        kinds: dict[str, Kind] = {}
        _describe(WireMessage, kinds)
        calls, replies = (
            frozenset(kind.__name__ for kind in get_args(union)) for union in (ModelCall, ModelReply)
        )
        return cls(__version__, calls, replies, kinds)


def difference(server: Messages, replica: Messages) -> str | None:
    """Return why a server cannot use a replica and what to upgrade, or None."""
    for name in sorted(server.kinds.keys() & replica.kinds.keys()):
        problem = _difference(name, server.kinds[name], replica.kinds[name])
        if problem is not None:
            return f"{problem}; {_what_to_upgrade(server, replica)}"
    if unknown := sorted(replica.replies - server.replies):
        return f"the server does not know the reply {unknown[0]}; {_what_to_upgrade(server, replica)}"
    return None


def _difference(name: str, one: Kind, other: Kind) -> str | None:
    if one.is_array != other.is_array:
        return f"{name} is sent in different forms"
    shorter, longer = sorted((one, other), key=lambda kind: len(kind.fields))
    if one.is_array and longer.fields[: len(shorter.fields)] != shorter.fields:
        return f"the fields of {name} differ"
    by_name = {each.name: each for each in longer.fields}
    if any(by_name.get(each.name) != each for each in shorter.fields):
        return f"the fields of {name} differ"
    known = {each.name for each in shorter.fields}
    required = [each.name for each in longer.fields if each.name not in known and not each.is_optional]
    return f"{name}.{required[0]} is required by one of them" if required else None


def _what_to_upgrade(server: Messages, replica: Messages) -> str:
    """Return which end is older, in words."""
    if server.version == replica.version:
        return "install the same version on both"
    if _number(server.version) < _number(replica.version):
        return f"upgrade the server first, which runs chaski {server.version} (the replica {replica.version})"
    return f"upgrade the replica first, which runs chaski {replica.version} (the server {server.version})"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def _describe(kind: Any, found: dict[str, Kind]) -> None:
    """Add a type and all types of its fields to `found`."""
    if isinstance(kind, type) and kind.__name__ not in found:
        if issubclass(kind, Struct):
            own = tuple(
                Field(
                    each.encode_name,
                    str(kind.__annotations__.get(each.name, each.type)),
                    each.default is not NODEFAULT or each.default_factory is not NODEFAULT,
                )
                for each in fields(kind)
            )
            found[kind.__name__] = Kind(own, kind.__struct_config__.array_like)
        elif hasattr(kind, "_fields"):  # a named tuple, which has no optional fields on the wire
            own = tuple(Field(name, str(kind.__annotations__[name]), False) for name in kind._fields)
            found[kind.__name__] = Kind(own, True)
        if kind.__name__ in found:
            for hint in get_type_hints(kind).values():
                _describe(hint, found)
    for argument in get_args(kind):
        _describe(argument, found)
