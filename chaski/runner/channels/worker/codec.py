"""Encoding and decoding of the messages between a model's process and its users.

Bytes only become instances of the classes listed here, so they cannot run code. A message is the pair of a
call's number and a `Sendable`, encoded as MessagePack. MessagePack lacks integers of more than 64 bits and
lone surrogates; a message that contains one is encoded as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import numpy as np
from msgspec import DecodeError, Meta, convert, msgpack, to_builtins

from chaski.chat.sendable import Sendable
from chaski.errors import ChaskiError, ContextLengthError, OptionError, WorkerError, class_name, error_class
from chaski.runner.channels.messages import ModelCall, ModelReply

__all__ = [
    "Cancel",
    "Failure",
    "Load",
    "LoadProgress",
    "Received",
    "WireMessage",
    "decode",
    "encode",
    "encode_call",
    "numbered",
    "protocol",
]


class Load(Sendable, frozen=True):
    """The first message to a worker: the arguments of `chaski.load`. Answered by `LoadProgress` and `Info`.

    protocol  the sender's `protocol()`; after the sender started, another version may have been installed
    """

    model: str
    options: dict[str, Any]
    log_level: int
    protocol: str = ""


class Cancel(Sendable, frozen=True):
    """Cancels the call with this number; no more replies to it are expected. Not answered."""


class Received(Sendable, frozen=True):
    """Confirms that the worker has read the call with this number. A call that was not confirmed can go to
    another process.
    """


class LoadProgress(Sendable, frozen=True):
    """The loaded fraction of the model, 0 to 1."""

    share: float


class Failure(Sendable, frozen=True):
    """An error instead of an answer: the name of a class in `chaski.errors`, and its message.

    `excess`: the number of tokens, the limit and the longest context if a prompt is too long; else empty.
    """

    kind: str
    message: str
    excess: tuple[int, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the failure that describes an error. An error of another class is a defect of chaski; its
        traceback is in the worker's log.
        """
        if isinstance(error, ContextLengthError):
            return cls("ContextLengthError", str(error), (error.length, error.limit, error.longest))
        if isinstance(error, ChaskiError):
            return cls(class_name(error), str(error))
        return cls("WorkerError", f"the worker failed with {error!r}; see its log for details")

    @property
    def error(self) -> ChaskiError:
        """Return the error to raise on this side."""
        return error_class(self.kind)(self.message, *self.excess)


WireMessage: TypeAlias = Load | Cancel | ModelCall | Received | LoadProgress | Failure | ModelReply


def encode(number: int, message: WireMessage) -> bytes:
    """Return the bytes of a message about call `number`. Raises OptionError for a value of another type."""
    return numbered(number, _alone(message))


def encode_call(call: ModelCall) -> bytes:
    """Return the bytes of a call, which `numbered` completes. A call is encoded once, wherever it is sent.

    Raises OptionError for a field of another type, for which the other end would end the connection.
    """
    data = _alone(call)
    try:
        _read(numbered(0, data))
    except (DecodeError, RecursionError) as error:
        reason, _, place = str(error).partition(" - at ")
        index = re.search(r"\$\[1\]\[(\d+)\]", place)
        name = "a call" if index is None else type(call).__struct_fields__[int(index[1]) - 1]
        value = call if index is None else getattr(call, name)
        raise OptionError(f"{name} is {value!r:.80}: {reason[:1].lower()}{reason[1:]}") from None
    return data


def numbered(number: int, data: bytes) -> bytes:
    """Return the pair of a number and an encoded message."""
    if data.startswith(b"["):  # JSON
        return b"[%d,%b]" % (number, data)
    return _PAIR + _encoder.encode(number) + data


def decode(data: bytes) -> tuple[int, WireMessage]:
    """Return the number of the call and the message. Raises WorkerError if the bytes are not a message."""
    try:
        return _read(data)
    except (DecodeError, ValueError, RecursionError, MemoryError) as error:
        raise WorkerError(
            f"received {len(data)} bytes that are not a message: {error or type(error)}"
        ) from None


@cache
def protocol() -> str:
    """Return 16 hexadecimal digits derived from the names and types of all fields of all messages.

    Both ends of a connection compare them if the other end may run another version of chaski.
    """
    described: dict[str, list[tuple[str, str]]] = {}

    def describe(kind: Any) -> None:
        fields = getattr(kind, "__struct_fields__", getattr(kind, "_fields", None))
        if isinstance(kind, type) and fields is not None and kind.__name__ not in described:
            described[kind.__name__] = [(name, kind.__annotations__[name]) for name in fields]
            for hint in get_type_hints(kind).values():
                describe(hint)
        for argument in get_args(kind):
            describe(argument)

    describe(WireMessage)
    return blake2b(repr(sorted(described.items())).encode(), digest_size=8).hexdigest()


def _read(data: bytes) -> tuple[int, WireMessage]:
    numbered: tuple[int, WireMessage]
    if data.startswith(b"["):  # a JSON array; MessagePack would read this byte as a number
        numbered = convert(json.loads(data), _Numbered, dec_hook=_array)
    else:
        numbered = _decoder.decode(data)
    return numbered


def _alone(message: WireMessage) -> bytes:
    """Return the bytes of a message without a number."""
    try:
        return _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError):
        return _as_json(message)
    except (TypeError, RecursionError) as error:
        raise OptionError(f"this cannot be sent to a worker: {error}") from None


def _as_json(message: WireMessage) -> bytes:
    try:
        return json.dumps(to_builtins(message, enc_hook=_plain), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"this cannot be sent to a worker: {error}") from None


def _plain(value: object) -> object:
    """Convert a value that msgspec cannot encode to one that it can."""
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):  # an instance of a subclass, as NumPy's float64 is one of float
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _array(kind: Any, value: Any) -> Any:
    """Return the array with the given shape and little-endian bytes. Raises ValueError or TypeError."""
    (element,) = get_args(get_args(kind)[1])
    shape, data = convert(value, tuple[tuple[int, ...], bytes])
    return np.frombuffer(data, np.dtype(element).newbyteorder("<")).reshape(shape)


_PAIR = b"\x92"
"""The mark of MessagePack before an array of two."""
# MessagePack has no larger numbers, so no reply to one could be encoded.
_Numbered = tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)], WireMessage]
_encoder = msgpack.Encoder(enc_hook=_plain)
_decoder: msgpack.Decoder[_Numbered] = msgpack.Decoder(_Numbered, dec_hook=_array)
