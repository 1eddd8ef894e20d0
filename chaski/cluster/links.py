"""Connections between the machines of a cluster: calls and replies over TLS, authenticated by its key.

Each replica has its own certificate, and both ends prove that they know the cluster's key
(`chaski/cluster_key.py`). The replica then sends a description of its messages, as JSON after its length.

A `Link` (`runner/channels/worker/link.py`) needs a plain socket. It gets one end of a socket pair. An event
loop in a separate thread forwards bytes between the other end and the network.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import DecodeError, json

from chaski.cluster_key import NONCE, client_context, new_nonce, proof, server_context
from chaski.errors import WorkerError
from chaski.runner.channels.worker.agreement import Messages, difference
from chaski.strangers import PATIENCE, Strangers

__all__ = ["Address", "Listener", "connect", "new_key"]

_PIECE = 1 << 16
_LENGTH = struct.Struct("<I")
_MOST_DESCRIBED = 1 << 20
_PAUSE = 0.1  # seconds to wait after a connection that could not be accepted

Address = tuple[str, int]


def new_key() -> bytes:
    """Return a key for a cluster."""
    return secrets.token_bytes(32)


class Listener:
    """Accepts connections in a separate thread and passes a socket for each one to `accepted`.

    host the address by which others reach this machine; listens on all addresses unless it is local address
    the address and the port
    """

    def __init__(self, host: str, key: bytes, accepted: Callable[[socket.socket], None]) -> None:
        self._key = key
        self._accepted = accepted
        self._strangers = Strangers()
        self._loop = _Loop()
        self._context, self._certificate = server_context()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        at = host if host in ("127.0.0.1", "::1") else ""
        self._socket = socket.create_server((at, 0), family=family)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._socket.setblocking(False)
        self._takers: set[asyncio.Task[None]] = set()
        self._loop.run(self._start())

    def close(self) -> None:
        """End all connections and stop listening. Does nothing the second time."""
        self._loop.stop()
        self._socket.close()

    async def _start(self) -> None:
        self._begin(self._listen())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._takers.add(task)
        task.add_done_callback(self._takers.discard)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError:  # too many open files, or the connection has already ended
                await asyncio.sleep(_PAUSE)
            else:
                self._begin(self._take(connection, address[0]))

    async def _take(self, connection: socket.socket, host: str) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            with self._strangers.enter(host, partial(_end, connection)):
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await _streams(connection, self._context)
                    await _prove_to_client(reader, writer, self._key, self._certificate)
                    described = json.encode(Messages.own())
                    writer.write(_LENGTH.pack(len(described)) + described)
            ours, theirs = socket.socketpair()
            threading.Thread(target=self._accepted, args=(theirs,), name="chaski-peer", daemon=True).start()
            await _carry(reader, writer, ours)
        except (OSError, TimeoutError, EOFError, _NoProofError, asyncio.CancelledError):
            pass
        finally:
            if writer is None:
                connection.close()
            else:
                writer.transport.abort()


async def _streams(
    connection: socket.socket, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Shake hands with a client. asyncio's server is not used: it cannot limit unauthenticated clients."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=PATIENCE
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def connect(address: Address, key: bytes) -> tuple[socket.socket, Messages]:
    """Return a socket to a listener of the same cluster, and the messages that the listener knows.

    Raises WorkerError if the listener cannot be reached, does not know the key, or uses messages that this
    version does not understand.
    """
    found: tuple[socket.socket, Messages] = _client_loop().run(_connect(address, key))
    return found


async def _connect(address: Address, key: bytes) -> tuple[socket.socket, Messages]:
    place = f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(*address, ssl=client_context(), server_hostname="")
            try:
                await _prove_to_server(reader, writer, key)
                messages = await _read_messages(reader)
                if (problem := difference(Messages.own(), messages)) is not None:
                    raise WorkerError(f"the replica at {place} does not understand this server: {problem}")
            except BaseException:
                writer.transport.abort()
                raise
    except (OSError, TimeoutError, EOFError) as error:
        raise WorkerError(
            f"the replica at {place} cannot be reached: {error or type(error).__name__}"
        ) from None
    except _NoProofError:
        raise WorkerError(f"what listens at {place} does not know the key of this cluster") from None
    ours, theirs = socket.socketpair()
    task = asyncio.create_task(_carry_and_close(reader, writer, ours))
    _carrying.add(task)
    task.add_done_callback(_carrying.discard)
    return theirs, messages


async def _read_messages(reader: asyncio.StreamReader) -> Messages:
    """Return the messages of the other end. Raises WorkerError for what is none."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    try:
        if length > _MOST_DESCRIBED:
            raise DecodeError("too long")
        return json.decode(await reader.readexactly(length), type=Messages)
    except DecodeError as error:
        raise WorkerError(
            f"a replica does not describe its messages ({error}); install the same version on both"
        ) from None


_carrying: set[asyncio.Task[None]] = set()


class _NoProofError(Exception):
    """The peer does not know the key."""


async def _prove_to_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, certificate: bytes
) -> None:
    nonces = await reader.readexactly(NONCE) + (own := new_nonce())
    writer.write(own + proof(key, b"replica", nonces, certificate))
    if not hmac.compare_digest(await reader.readexactly(NONCE), proof(key, b"client", nonces, certificate)):
        raise _NoProofError


async def _prove_to_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    own = new_nonce()
    writer.write(own)
    nonces = own + await reader.readexactly(NONCE)
    if not hmac.compare_digest(await reader.readexactly(NONCE), proof(key, b"replica", nonces, certificate)):
        raise _NoProofError
    writer.write(proof(key, b"client", nonces, certificate))


async def _carry_and_close(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: socket.socket
) -> None:
    try:
        await _carry(reader, writer, end)
    finally:
        writer.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: socket.socket) -> None:
    """Forward bytes in both directions until one end closes."""
    end.setblocking(False)
    loop = asyncio.get_running_loop()

    async def outwards() -> None:
        while piece := await loop.sock_recv(end, _PIECE):
            writer.write(piece)
            await writer.drain()

    async def inwards() -> None:
        while piece := await reader.read(_PIECE):
            await loop.sock_sendall(end, piece)

    tasks = [asyncio.create_task(outwards()), asyncio.create_task(inwards())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # it may be cancelled meanwhile
            end.close()


class _Loop:
    """An event loop in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaski-links", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result. Tasks that it starts continue to run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Cancel all tasks, and end the thread. Does nothing the second time."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # transports process their close in the next iteration of the loop


_starting = threading.Lock()
_loop: _Loop | None = None


def _client_loop() -> _Loop:
    """Return the loop for all outgoing connections of this process, starting it on first use."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = _Loop()
        return _loop
