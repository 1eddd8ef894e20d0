"""Ed25519 signatures (RFC 8032), which authenticate users at registries like Ollama's, and sign receipts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from chaski.errors import optional_package

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["is_signed", "public_key", "sign"]


def public_key(seed: bytes) -> bytes:
    """Return the public key, 32 bytes, of a secret key of 32 bytes."""
    return _private_key(seed).public_key().public_bytes_raw()


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature, 64 bytes, of a message with a secret key of 32 bytes."""
    return _private_key(seed).sign(message)


def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether `signature` is that of a message by the owner of a public key of 32 bytes."""
    with _cryptography():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _cryptography() -> AbstractContextManager[None]:
    return optional_package("cryptography", "keys", "signing and checking signatures")


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    with _cryptography():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)
