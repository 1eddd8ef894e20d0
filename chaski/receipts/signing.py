"""Signatures of receipts by the key of a server."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from msgspec.structs import replace

from chaski.errors import ReceiptError
from chaski.receipts.receipt import Receipt, Signature
from chaski.regular_files import open_regular
from chaski.store.ed25519 import is_signed, public_key, sign
from chaski.store.identity import Identity
from chaski.store.store import Store

__all__ = ["has_valid_signature", "read_key", "server_key", "shown_key", "signed"]

_KEY_BYTES = 32
_SSH = "ssh-ed25519"
_SSH_HEAD = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"
_MAX_FILE = 4096


def server_key(store: Store) -> Identity:
    """Return the key with which the server of a store signs receipts; make it if there is none.

    Raises StoreError for a key that cannot be read or written.
    """
    return Identity.of_user(store.root / "chaski" / "receipt_key")


def shown_key(identity: Identity) -> str:
    """Return the public key as receipts contain it: 32 bytes in Base64."""
    return base64.b64encode(public_key(identity.seed)).decode()


def signed(receipt: Receipt, identity: Identity) -> Receipt:
    """Return the receipt with a signature, which replaces an earlier one."""
    value = base64.b64encode(sign(identity.seed, receipt.signed_bytes())).decode()
    return replace(receipt, signature=Signature(key=shown_key(identity), value=value))


def has_valid_signature(receipt: Receipt) -> bool:
    """Return whether a receipt is signed by the key that it names. Whose key that is, the caller decides."""
    signature = receipt.signature
    if signature is None:
        return False
    try:
        key, value = (base64.b64decode(text, validate=True) for text in (signature.key, signature.value))
    except binascii.Error:
        return False
    return is_signed(key, value, receipt.signed_bytes())


def read_key(text: str) -> str:
    """Return a public key as receipts contain it.

    text: the key in Base64 or as a line of OpenSSH, or the path of a file with one of these. Raises
    ReceiptError.
    """
    for candidate in (text, _first_line(text)):
        key = _key(candidate)
        if key is not None:
            return base64.b64encode(key).decode()
    raise ReceiptError(
        f"{text!r:.80} is no public key: give 32 bytes in Base64, a line that begins with {_SSH}, or a file "
        "with one of these"
    )


def _key(text: str) -> bytes | None:
    """Return the 32 bytes of a key; None if the text is none."""
    words = text.split()
    is_ssh = words[:1] == [_SSH] and len(words) > 1
    try:
        data = base64.b64decode(words[1] if is_ssh else text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    if is_ssh:
        data = data[len(_SSH_HEAD) :] if data.startswith(_SSH_HEAD) else b""
    return data if len(data) == _KEY_BYTES else None


def _first_line(path: str) -> str:
    try:
        with open_regular(Path(path)) as file:
            return file.read(_MAX_FILE).decode("ascii").strip()
    except (OSError, ValueError):
        return ""
