"""Ed25519 signatures (RFC 8032), which authenticate users at registries like Ollama's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaski.errors import optional_package

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["public_key", "sign"]


def public_key(seed: bytes) -> bytes:
    """Return the public key, 32 bytes, of a secret key of 32 bytes."""
    return _private_key(seed).public_key().public_bytes_raw()


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature, 64 bytes, of a message with a secret key of 32 bytes."""
    return _private_key(seed).sign(message)


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    with optional_package("cryptography", "keys", "signing for a registry"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)
