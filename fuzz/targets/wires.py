"""Messages between processes and machines: worker frames, frames and values of shards, links of a cluster."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import DecodeError, msgpack

from chaski.cluster.links import _read_messages
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.rounding import RoundedRows
from chaski.runner.channels.worker.agreement import Messages, difference
from chaski.runner.channels.worker.codec import decode, encode
from fuzz.mutations import mixed, mutate_bytes, mutate_json, mutate_value
from fuzz.target import Target

__all__ = ["TARGETS", "pair"]


def worker(data: bytes) -> None:
    """Bytes are refused as a message, or the message is encoded to bytes that mean the same."""
    number, message = decode(data)
    once = encode(number, message)
    assert encode(*decode(once)) == once


def shard_frames(data: bytes) -> None:
    """A connection carries messages until it ends or is refused; each is sent again as the same bytes."""
    with _sent(data) as frames:
        while True:
            fields, arrays = frames.receive()
            with pair() as (near, far):
                Frames(near).send(fields, arrays)
                again_fields, again = Frames(far).receive()
            assert repr(again_fields) == repr(fields)
            assert [each.tobytes() for each in again] == [each.tobytes() for each in arrays]


def shard_values(data: bytes) -> None:
    """A connection carries values until it ends or is refused."""
    with _sent(data) as frames:
        values = frames.values()
        while True:
            _, rows = values.receive()
            if isinstance(rows, RoundedRows):
                rows.floats()


def link(data: bytes) -> None:
    """The description of the messages of another version is read and compared, or refused."""
    with suppress(EOFError):
        difference(Messages.own(), asyncio.run(_described(data)))


async def _described(data: bytes) -> Messages:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await _read_messages(reader)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield near, far


@contextmanager
def _sent(data: bytes) -> Iterator[Frames]:
    """Provide the receiving end of a connection that carries these bytes and then ends."""
    with pair() as (near, far), suppress(EOFError):
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        yield Frames(far)


def mutate_message(data: bytes, rng: random.Random) -> bytes:
    """Change the values of a MessagePack or JSON message; of other bytes, bytes."""
    if data.startswith(b"["):
        return mutate_json(data, rng)
    try:
        value = msgpack.decode(data)
    except (DecodeError, RecursionError):
        return mutate_bytes(data, rng)
    try:
        return msgpack.encode(mutate_value(value, rng))
    except (TypeError, ValueError, OverflowError, RecursionError):  # also numbers and texts without a code
        return mutate_bytes(data, rng)


def mutate_frame(data: bytes, rng: random.Random) -> bytes:
    """Change the fields of the first message, and write their length again."""
    end = 4 + int.from_bytes(data[:4], "little")
    text = mutate_json(data[4:end], rng)
    return struct.pack("<I", len(text)) + text + data[end:]


TARGETS = (
    Target("worker", worker, mixed(mutate_message, mutate_message, mutate_bytes)),
    Target("shard-frames", shard_frames, mixed(mutate_frame, mutate_frame, mutate_bytes)),
    Target("shard-values", shard_values, mutate_bytes),
    Target("link", link, mixed(mutate_frame, mutate_bytes)),
)
