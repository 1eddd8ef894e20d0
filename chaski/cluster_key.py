"""The key of a cluster: mutual authentication of both ends of a TLS connection.

The listening end uses a self-signed certificate. After the handshake each end sends a hash of the key, of
random numbers from both ends, and of that certificate. This authenticates both ends and prevents
man-in-the-middle attacks.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from chaski.errors import OptionError, optional_package
from chaski.regular_files import read_regular

__all__ = ["NONCE", "client_context", "new_nonce", "proof", "read_key", "server_context"]

NONCE = 32
"""Sizes of a random number and of a proof, in bytes."""

_LEAST = 32


def new_nonce() -> bytes:
    """Return a random number for a single use."""
    return secrets.token_bytes(NONCE)


def proof(key: bytes, who: bytes, nonces: bytes, certificate: bytes) -> bytes:
    """Return a proof that only a holder of the key can compute. `who` distinguishes the two ends."""
    return hmac.digest(key, who + nonces + certificate, "sha256")


def client_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate. The proof verifies it instead of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def server_context() -> tuple[ssl.SSLContext, bytes]:
    """Return a context with a new certificate, and that certificate.

    Raises MissingPackageError if the required package is not installed.
    """
    with optional_package("cryptography", "keys", "a connection between nodes"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "chaski")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(private, hashes.SHA256())
    )
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with TemporaryDirectory() as folder:  # the ssl module reads only files; the folder is private
        path = f"{folder}/pair.pem"
        with open(path, "wb") as file:
            file.write(private.private_bytes(encoding, kind, serialization.NoEncryption()))
            file.write(certificate.public_bytes(encoding))
        context.load_cert_chain(path)
    return context, certificate.public_bytes(serialization.Encoding.DER)


def read_key(path: str | None) -> bytes:
    """Read the key of nodes from a file: at least 32 characters, readable only by its owner.

    Raises OptionError for a missing or invalid key.
    """
    if path is None:
        raise OptionError(
            "no key is named: CHASKI_NODES_KEY is the path of a file with the same random text on all nodes; "
            "`(umask 077; openssl rand -hex 32 > nodes.key)` makes one"
        )
    file = Path(path).expanduser()
    try:
        key = read_regular(file).strip()
        mode = file.stat().st_mode
    except OSError as error:
        raise OptionError(f"the key {path} cannot be read: {error.strerror}") from None
    if len(key) < _LEAST:
        raise OptionError(f"the key {path} has {len(key)} characters; it needs {_LEAST} random ones or more")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OptionError(f"others than its owner may read the key {path}: chmod 600 {path}")
    return key
