"""Typed values as JSON and back. Only the types in the table exist: what is read can never run anything.

A message is `[number, tag, field, field, ...]`; the types of the fields come from the annotations of the
class that the tag names, and what does not match them is refused.
"""

from __future__ import annotations

import json
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct

from chaski.chat.events import Done, PromptScores, PromptTokens, Text, Thinking, ToolCall
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.errors import ChaskiError, ContextLengthError, OptionError, WorkerError, error_class
from chaski.runner.adapters.calls import Adapters, ListAdapters, LoadAdapter, UnloadAdapter
from chaski.runner.engine.live import LiveSequences
from chaski.runner.engine.outputs import Outputs
from chaski.runner.prefix.calls import Blocks, ListBlocks, NameBlocks
from chaski.runner.service.cache_picture import CachePicture, DescribeCache
from chaski.runner.service.messages import (
    Describe,
    Detokenize,
    Info,
    LookLive,
    ModelCall,
    ModelReply,
    RenderChat,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from chaski.runner.states.calls import EraseSlot, LoadState, SavedState, SaveSlot, SaveState

__all__ = ["Cancel", "Failure", "Load", "LoadProgress", "Received", "WireMessage", "decode", "encode"]


class Load(Struct, frozen=True):
    """The first message to a worker: arguments of `chaski.load`. Answered by `LoadProgress` and `Info`."""

    model: str
    options: dict[str, Any]
    log_level: int


class Cancel(Struct, frozen=True):
    """Cancels the call of this number, whose replies are not awaited any more. Not answered."""


class Received(Struct, frozen=True):
    """The worker has read the call of this number. One that it has not read can go to another process."""


class LoadProgress(Struct, frozen=True):
    """The share of the model that is loaded, 0 to 1."""

    share: float


class Failure(Struct, frozen=True):
    """An error in place of an answer: the name of a class in `chaski.errors`, and its message.

    `excess`: for a prompt that is too long, its number of tokens and the limit; empty otherwise.
    """

    kind: str
    message: str
    excess: tuple[int, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """An error that is not one of ours is a defect; its trace is in the worker's log."""
        if isinstance(error, ContextLengthError):
            return cls(type(error).__name__, str(error), (error.length, error.limit))
        if isinstance(error, ChaskiError):
            return cls(type(error).__name__, str(error))
        return cls("WorkerError", f"the worker failed with {error!r}; its log has more")

    @property
    def error(self) -> ChaskiError:
        """The error, to be raised on this side."""
        return error_class(self.kind)(self.message, *self.excess)


WireMessage: TypeAlias = Load | Cancel | ModelCall | Received | LoadProgress | Failure | ModelReply

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Load, Cancel, Generate, Chat, Fill, Embed, Rank, Tokenize),
        *(TokenizeChat, RenderChat, Detokenize, Describe, LookLive),
        *(Received, LoadProgress, Failure, Text, Thinking, ToolCall, PromptTokens, PromptScores, Done),
        *(Outputs, Tokens, String, Info, LiveSequences),
        *(LoadAdapter, UnloadAdapter, ListAdapters, Adapters),
        *(SaveState, LoadState, SaveSlot, EraseSlot, SavedState),
        *(DescribeCache, CachePicture, NameBlocks, ListBlocks, Blocks),
    )
}


def encode(number: int, message: WireMessage) -> bytes:
    """A message about call `number`. Raises OptionError for a value that JSON cannot hold."""
    kind: type = type(message)
    try:
        return _encoder.encode([number, kind.__name__, *_values(kind)(message)]).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"this cannot be sent to a worker: {error}") from None


def decode(data: bytes) -> tuple[int, WireMessage]:
    """The number of the call and the message. Raises WorkerError for anything that is not one."""
    try:
        number, tag, *values = json.loads(data.decode())
        message: WireMessage = _reader(_KINDS[tag])(values)
        return _integer(number), message
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise WorkerError(f"a message of {len(data)} bytes is not one: {error!r}") from None


def _plain(value: object) -> object:
    """Return a JSON value for a type that JSON lacks. Nested structs become lists of their fields."""
    if isinstance(value, Struct):
        return _values(type(value))(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
        return [list(value.shape), b64encode(data).decode()]
    raise TypeError(f"a value of type {type(value).__name__}")


_encoder = json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False)


@cache
def _values(kind: type[Struct]) -> Callable[[Any], Iterable[Any]]:
    """Reads the fields of a struct, in order; files become base64 where they are declared as bytes."""
    names = kind.__struct_fields__
    hints = get_type_hints(kind)
    if any(hints[name] == tuple[bytes, ...] for name in names):
        return lambda value: [
            [b64encode(file).decode() for file in getattr(value, name)]
            if hints[name] == tuple[bytes, ...]
            else getattr(value, name)
            for name in names
        ]
    match names:
        case ():
            return lambda value: ()
        case (name,):
            return lambda value: (getattr(value, name),)
        case _:
            return attrgetter(*names)


FieldReader = Callable[[Any], Any]
"""Takes what JSON gave, gives a value of one type; raises TypeError, or ValueError, where it does not fit."""


@cache
def _reader(kind: Any) -> FieldReader:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if (aliased := getattr(origin, "__value__", None)) is not None:
        return _reader(aliased[arguments])  # of a `type` statement, as the NDArray of NumPy 2.5 is
    if origin in (Union, types.UnionType):
        return _either([_reader(argument) for argument in arguments])
    if origin is Literal:
        return _one_of(arguments)
    if kind is bytes:
        return _bytes
    if origin is np.ndarray:
        (element,) = get_args(arguments[1])
        return _array(np.dtype(element).newbyteorder("<"))
    if origin is tuple:
        return _many(_reader(arguments[0]))
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "_fields"):
        return _record(kind)
    return _scalar(origin or kind)


def _scalar(kind: type) -> FieldReader:
    if kind is int:
        return _integer
    accepted = (int, float) if kind is float else (kind,)

    def read(value: Any) -> Any:
        if type(value) not in accepted:
            raise TypeError(f"{kind.__name__} expected, {type(value).__name__} found")
        return value

    return read


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"int expected, {type(value).__name__} found")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError(f"base64 expected, {type(value).__name__} found")
    return b64decode(value, validate=True)


def _array(element: np.dtype[Any]) -> FieldReader:
    """Reads an array of one type of elements: its shape, and its bytes in little-endian order."""

    def read(value: Any) -> Any:
        shape, data = value
        return np.frombuffer(b64decode(data, validate=True), element).reshape(shape)

    return read


def _one_of(allowed: tuple[Any, ...]) -> FieldReader:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"{value!r} is none of {allowed}")
        return value

    return read


def _either(readers: list[FieldReader]) -> FieldReader:
    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except TypeError as error:
                refused = error
        raise refused

    return read


def _many(reader: FieldReader) -> FieldReader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"a list expected, {type(value).__name__} found")
        return tuple(map(reader, value))

    return read


def _record(kind: Any) -> FieldReader:
    """A struct or a named tuple."""
    names = kind._fields if hasattr(kind, "_fields") else kind.__struct_fields__
    hints = get_type_hints(kind)
    readers = [_reader(hints[name]) for name in names]
    is_positional = hasattr(kind, "_fields") or len(kind.__match_args__) == len(names)

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise TypeError(f"{len(readers)} fields of {kind.__name__} expected")
        found = [reader(item) for reader, item in zip(readers, value, strict=True)]
        return kind(*found) if is_positional else kind(**dict(zip(names, found, strict=True)))

    return read
