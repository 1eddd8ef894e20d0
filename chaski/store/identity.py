"""`Identity`: the key, in OpenSSH's format, that authenticates a user at registries like Ollama's.

Format: https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.key
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from chaski.errors import StoreError
from chaski.regular_files import open_regular
from chaski.store.durable import store_errors
from chaski.store.ed25519 import public_key, sign

__all__ = ["Identity"]

_MAGIC = b"openssh-key-v1\0"
_KIND = b"ssh-ed25519"
_BEGIN, _END = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
_BLOCK = 8
_LINE = 70
_MAX_BYTES = 1 << 14
_NO_BODY = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A secret key of 32 bytes, which is never shown or sent."""

    seed: bytes

    @classmethod
    def of_user(cls, path: Path | None = None) -> Identity:
        """Load the user's key, by default `~/.ollama/id_ed25519`. Creates it if it does not exist.

        Raises StoreError for an unreadable key.
        """
        path = path or Path.home() / ".ollama" / "id_ed25519"
        try:
            with open_regular(path) as file:
                text = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return cls._created(path)
        except OSError as error:
            raise StoreError(f"the key {path} cannot be read: {error.strerror}") from None
        try:
            return cls(_read(text.decode("ascii")))
        except (ValueError, struct.error) as error:
            raise StoreError(
                f"the key {path} cannot be used: {error}; `ssh-keygen -t ed25519 -N ''` makes one"
            ) from None

    @property
    def public(self) -> bytes:
        """The public key in SSH's wire format."""
        return _string(_KIND) + _string(public_key(self.seed))

    def authorization(self, method: str, url: str) -> str:
        """Return the authorization header that signs a request without a body."""
        signature = sign(self.seed, f"{method},{url},{_NO_BODY}".encode())
        return f"{base64.b64encode(self.public).decode()}:{base64.b64encode(signature).decode()}"

    def text(self) -> str:
        """Return the private key as file text."""
        check = secrets.token_bytes(4) * 2
        pair = _string(self.seed + public_key(self.seed))
        private = check + self.public + pair + _string(b"")
        private += bytes(range(1, -len(private) % _BLOCK + 1))
        whole = b"".join(
            (_MAGIC, _string(b"none"), _string(b"none"), _string(b""), struct.pack(">I", 1))
        ) + b"".join((_string(self.public), _string(private)))
        data = base64.b64encode(whole).decode()
        lines = [data[begin : begin + _LINE] for begin in range(0, len(data), _LINE)]
        return "\n".join([_BEGIN, *lines, _END, ""])

    @classmethod
    def _created(cls, path: Path) -> Identity:
        """Write a new key. If another process does so at the same time, the first key wins."""
        identity = cls(secrets.token_bytes(32))
        with store_errors("the key cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                _write(aside, identity.text(), 0o600)
                os.link(aside, path)
            except FileExistsError:
                return cls.of_user(path)
            finally:
                aside.unlink(missing_ok=True)
            public = f"ssh-ed25519 {base64.b64encode(identity.public).decode()}\n"
            path.with_name(f"{path.name}.pub").unlink(missing_ok=True)
            _write(path.with_name(f"{path.name}.pub"), public, 0o644)
        return identity


def _write(path: Path, text: str, mode: int) -> None:
    """Create a file that never has wider permissions than `mode`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read(text: str) -> bytes:
    """Return the secret in a private key. Raises ValueError, or struct.error for a truncated key."""
    match = re.fullmatch(rf"\s*{_BEGIN}([A-Za-z0-9+/=\s]+){_END}\s*", text)
    if match is None:
        raise ValueError("it is not a private key in OpenSSH's format")
    try:
        data = base64.b64decode("".join(match[1].split()), validate=True)
    except binascii.Error:
        raise ValueError("it is damaged") from None
    if not data.startswith(_MAGIC):
        raise ValueError("it is damaged")
    cipher, rest = _taken(data[len(_MAGIC) :])
    if cipher != b"none":
        raise ValueError("it has a passphrase")
    _, rest = _taken(rest)
    _, rest = _taken(rest)
    _, rest = _taken(rest[4:])
    private, _ = _taken(rest)
    if private[:4] != private[4:8]:
        raise ValueError("it is damaged")
    kind, rest = _taken(private[8:])
    if kind != _KIND:
        raise ValueError(f"it is of the kind {kind.decode('ascii', 'replace')}, not ssh-ed25519")
    public, rest = _taken(rest)
    pair, _ = _taken(rest)
    if len(pair) != 64 or pair[32:] != public or public_key(pair[:32]) != public:
        raise ValueError("its two halves do not belong together")
    return pair[:32]


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _taken(data: bytes) -> tuple[bytes, bytes]:
    """Split bytes into the first length-prefixed string and the rest."""
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 4:
        raise ValueError("it is cut off")
    return data[4 : 4 + length], data[4 + length :]
