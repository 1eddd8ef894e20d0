"""Ed25519 signatures as RFC 8032 defines them: what registries of Ollama's kind know their users by.

Every multiplication takes the same steps, whatever the secret number is; numbers of Python are no more
constant in time than that. It signs a request now and then on the user's own machine.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

__all__ = ["public_key", "sign"]

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_BITS = 255


class _Point(NamedTuple):
    """Extended coordinates: x = X/Z, y = Y/Z, T = XY/Z."""

    x: int
    y: int
    z: int
    t: int


def _base() -> _Point:
    """The point with y = 4/5 and an even x."""
    y = 4 * pow(5, -1, _P) % _P
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    x = _P - x if x % 2 else x
    return _Point(x, y, 1, x * y % _P)


_ZERO = _Point(0, 1, 1, 0)
_BASE = _base()


def public_key(seed: bytes) -> bytes:
    """The 32 bytes of the public key that belong to a secret of 32 bytes."""
    scalar, _ = _expanded(seed)
    return _encoded(_times(scalar))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature of a message, 64 bytes, by the secret of 32 bytes."""
    scalar, prefix = _expanded(seed)
    number = _hash_number(prefix + message)
    commitment = _encoded(_times(number))
    challenge = _hash_number(commitment + _encoded(_times(scalar)) + message)
    return commitment + ((number + challenge * scalar) % _ORDER).to_bytes(32, "little")


def _expanded(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & ((1 << 254) - 8) | 1 << 254, digest[32:]


def _hash_number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _ORDER


def _add(one: _Point, other: _Point) -> _Point:
    a = (one.y - one.x) * (other.y - other.x) % _P
    b = (one.y + one.x) * (other.y + other.x) % _P
    c = 2 * one.t * other.t * _D % _P
    d = 2 * one.z * other.z % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return _Point(e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _times(number: int) -> _Point:
    """The base point, added up so many times: a ladder with one addition and one doubling a bit."""
    pair = [_ZERO, _BASE]
    for bit in reversed(range(_BITS)):
        chosen = number >> bit & 1
        pair[1 - chosen] = _add(pair[0], pair[1])
        pair[chosen] = _add(pair[chosen], pair[chosen])
    return pair[0]


def _encoded(point: _Point) -> bytes:
    inverse = pow(point.z, -1, _P)
    x, y = point.x * inverse % _P, point.y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
