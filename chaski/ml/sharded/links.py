"""Connections between members over TLS, where each end proves to the other that it knows the key.

A connection carries messages in one direction only, so that one thread at a time uses each end.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from chaski.cluster_key import NONCE, client_context, new_nonce, proof, server_context
from chaski.errors import ClusterError
from chaski.strangers import PATIENCE, Strangers

__all__ = ["Listener", "connect"]


class Listener:
    """A listener that accepts connections at an address and passes each to `accepted` in its own thread.

    Raises ClusterError if it cannot listen at the address.
    """

    def __init__(self, host: str, port: int, key: bytes, accepted: Callable[[socket.socket], None]) -> None:
        self._key = key
        self._accepted = accepted
        self._strangers = Strangers()
        self._context, self._certificate = server_context()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ClusterError(f"cannot listen at {host}:{port}: {error}") from None
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="chaski-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Accepted connections continue."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(connection, address[0]), daemon=True).start()

    def _take(self, connection: socket.socket, host: str) -> None:
        plain = socket.fromfd(connection.fileno(), connection.family, connection.type)
        try:
            with plain, self._strangers.enter(host, lambda: _end(plain)):
                deadline = _Deadline(PATIENCE)
                deadline.limit(connection)
                connection = self._context.wrap_socket(connection, server_side=True)
                _prove_to_client(connection, self._key, self._certificate, deadline)
            _settle(connection)
            self._accepted(connection)
        except (OSError, EOFError, _NoProofError):
            connection.close()


def connect(host: str, port: int, key: bytes) -> socket.socket:
    """Return a connection to a member that knows the key. Raises ClusterError if that is not possible."""
    connection: socket.socket | None = None
    deadline = _Deadline(PATIENCE)
    try:
        connection = socket.create_connection((host, port), PATIENCE)
        deadline.limit(connection)
        connection = client_context().wrap_socket(connection)
        _prove_to_server(connection, key, deadline)
    except (OSError, EOFError) as error:
        command = f"`chaski shard --listen {host}:{port}`"
        reason = f"cannot be reached: {error or type(error).__name__}; run {command} there"
    except _NoProofError:
        reason = "does not know the key: give all nodes the same file of CHASKI_NODES_KEY"
    else:
        _settle(connection)
        return connection
    if connection is not None:
        connection.close()
    raise ClusterError(f"node {host}:{port} {reason}")


class _NoProofError(Exception):
    """The other end does not know the key."""


class _Deadline:
    """A deadline for a whole exchange. Data that arrive slowly do not extend it."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def limit(self, connection: socket.socket) -> None:
        """Limit a connection's next operation to the remaining time. Raises TimeoutError if none is left."""
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError("the other end did not prove in time that it knows the key")
        connection.settimeout(left)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _prove_to_client(connection: socket.socket, key: bytes, certificate: bytes, deadline: _Deadline) -> None:
    nonces = _read(connection, deadline) + (own := new_nonce())
    deadline.limit(connection)
    connection.sendall(own + proof(key, b"member", nonces, certificate))
    _check(_read(connection, deadline), proof(key, b"head", nonces, certificate))


def _prove_to_server(connection: ssl.SSLSocket, key: bytes, deadline: _Deadline) -> None:
    certificate = connection.getpeercert(binary_form=True) or b""
    deadline.limit(connection)
    connection.sendall(own := new_nonce())
    nonces = own + _read(connection, deadline)
    _check(_read(connection, deadline), proof(key, b"member", nonces, certificate))
    deadline.limit(connection)
    connection.sendall(proof(key, b"head", nonces, certificate))


def _check(found: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(found, wanted):
        raise _NoProofError


def _read(connection: socket.socket, deadline: _Deadline) -> bytes:
    found = b""
    while len(found) < NONCE:
        deadline.limit(connection)
        piece = connection.recv(NONCE - len(found))
        if not piece:
            raise EOFError("the connection ended")
        found += piece
    return found
