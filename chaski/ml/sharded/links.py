"""Connections between members: TLS, and on both ends the proof that the other one knows the key.

A connection carries messages one way only, so that each end of it is used by one thread at a time.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from chaski.cluster_key import NONCE, client_context, new_nonce, proof, server_context
from chaski.errors import ClusterError

__all__ = ["PATIENCE", "Listener", "connect"]

PATIENCE = 5.0
"""Seconds that the other end has to take a connection, and to prove that it knows the key."""

# Connections that have not proved yet that they know the key.
_STRANGERS = 64


class Listener:
    """Takes connections at an address, and hands each one to `accepted`, in a thread of its own.

    Raises ClusterError where nobody can listen there.
    """

    def __init__(self, host: str, port: int, key: bytes, accepted: Callable[[socket.socket], None]) -> None:
        self._key = key
        self._accepted = accepted
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._context, self._certificate = server_context()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ClusterError(f"nobody can listen at {host}:{port}: {error}") from None
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="chaski-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. What was accepted goes on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._take, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _take(self, connection: socket.socket) -> None:
        try:
            try:
                connection.settimeout(PATIENCE)
                connection = self._context.wrap_socket(connection, server_side=True)
                _prove_to_client(connection, self._key, self._certificate)
            finally:
                self._strangers.release()
            _settle(connection)
            self._accepted(connection)
        except (OSError, EOFError, _NoProofError):
            connection.close()


def connect(host: str, port: int, key: bytes) -> socket.socket:
    """Return a connection to a member that knows the key. Raises ClusterError where there is none."""
    connection: socket.socket | None = None
    try:
        connection = socket.create_connection((host, port), PATIENCE)
        connection = client_context().wrap_socket(connection)
        _prove_to_server(connection, key)
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


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _prove_to_client(connection: socket.socket, key: bytes, certificate: bytes) -> None:
    nonces = _read(connection) + (own := new_nonce())
    connection.sendall(own + proof(key, b"member", nonces, certificate))
    _check(_read(connection), proof(key, b"head", nonces, certificate))


def _prove_to_server(connection: ssl.SSLSocket, key: bytes) -> None:
    certificate = connection.getpeercert(binary_form=True) or b""
    connection.sendall(own := new_nonce())
    nonces = own + _read(connection)
    _check(_read(connection), proof(key, b"member", nonces, certificate))
    connection.sendall(proof(key, b"head", nonces, certificate))


def _check(found: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(found, wanted):
        raise _NoProofError


def _read(connection: socket.socket) -> bytes:
    found = b""
    while len(found) < NONCE:
        piece = connection.recv(NONCE - len(found))
        if not piece:
            raise EOFError("the connection ended")
        found += piece
    return found
